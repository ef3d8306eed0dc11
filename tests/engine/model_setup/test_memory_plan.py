"""The pool's size on a CPU, the bytes of every part, and refusals with numbers."""

from pathlib import Path

import pytest

from engine import LoadError
from engine.model_setup.memory_plan import GIB, size_text
from tests.support.engine.tiny_models import tiny_engine, write_tiny_draft


def test_a_pool_too_small_for_one_request_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"kv\.num_pages=8: found room for 32 tokens.* least 36"):
        tiny_engine(draft_folder=write_tiny_draft(tmp_path), num_pages=8, page_size=4)
    assert tiny_engine(num_pages=8, page_size=4).memory.num_tokens == 32


@pytest.mark.parametrize(
    ("size", "text"),
    [(2.5 * GIB, "2.50 GiB"), (GIB // 2, "0.50 GiB"), (99 << 20, "99 MiB"), (0, "0 MiB")],
)
def test_a_size_has_the_unit_that_shows_it(size: float, text: str) -> None:
    assert size_text(size) == text


def test_every_part_has_its_bytes(tmp_path: Path) -> None:
    built = tiny_engine(
        draft_folder=write_tiny_draft(tmp_path),
        num_pages=64,
        page_size=4,
        native_kernels="off",  # they move weights into whole large pages
    )
    plan, model = built.memory, built.target.model
    per_token = 5 * 2 * (16 + 16) * 4 + 2 * 2 * (12 + 12) * 4
    assert plan.pool_bytes == 64 * 4 * per_token
    assert plan.target_bytes == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert built.draft is not None
    own = {n: p for n, p in built.draft.network.named_parameters() if "embed" not in n}
    assert 0 < plan.draft_bytes <= sum(p.nbytes for p in own.values()) * 1.5
    assert built.engine.info.details["memory"] == dict(plan.describe())


@pytest.mark.parametrize(
    "settings", [{"num_pages": 10**15}, {"num_pages": None, "memory_gib": 1e6}]
)
def test_a_pool_beyond_the_machines_memory_is_refused_with_numbers(
    settings: dict[str, float],
) -> None:
    with pytest.raises(LoadError, match=r"found .* GiB of KV memory; .* GiB, which this machine"):
        tiny_engine(**settings)


def test_memory_gib_sizes_the_pool_on_cpu() -> None:
    built = tiny_engine(num_pages=None, memory_gib=0.01)
    assert 0 <= 0.01 * GIB - built.memory.pool_bytes < built.memory.bytes_per_page
