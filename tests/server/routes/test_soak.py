"""Mixed requests on all routes, of which clients abandon every seventh, leave nothing behind."""

from pathlib import Path

from tests.support.server.soak import soak
from tests.support.server.tiny_service import tiny_service


def test_a_few_hundred_mixed_requests_leave_nothing_behind(tmp_path: Path) -> None:
    with tiny_service(
        tmp_path, max_tokens_cap=6, default_max_tokens=3, log_requests=False
    ) as service:
        outcomes = soak(service, count=350, seed=0)
    assert outcomes["abandoned"] >= 350 // 7 - 2
    assert outcomes["200"] > 100
    assert outcomes["400"] > 30
