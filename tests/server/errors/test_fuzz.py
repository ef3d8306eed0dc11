"""Random bodies get a response in the API's shape and leak nothing."""

import asyncio
import gc
import random
import resource
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server.random_bodies import BODIES, check, content_of, mutated
from tests.support.server.tiny_service import TinyService, tiny_service


def bombard(service: TinyService, *, count: int, seed: int) -> dict[int, int]:
    """Send `count` bodies; return the number of responses by status."""
    rng = random.Random(seed)
    statuses: dict[int, int] = {}
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=service.url, timeout=60) as client:
        for _ in range(count):
            path = rng.choice(list(BODIES))
            body: Any = BODIES[path]
            for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
                body = mutated(rng, body)
            sent = content_of(rng, body)
            response = client.post(path, content=sent, headers=headers)
            check(path, response, sent)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
    return statuses


def num_tasks() -> int:
    """Return unfinished asyncio tasks of all threads."""
    return sum(type(item) is asyncio.Task and not item.done() for item in gc.get_objects())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyService]:
    folder = tmp_path_factory.mktemp("fuzz")
    with tiny_service(folder, max_tokens_cap=6, default_max_tokens=3, log_requests=False) as tiny:
        yield tiny


def test_a_few_hundred_random_bodies_leak_nothing(service: TinyService) -> None:
    bombard(service, count=5, seed=0)
    service.wait_until_idle()
    before = num_tasks()
    statuses = bombard(service, count=300, seed=1)
    service.wait_until_idle()
    assert statuses[200] > 30
    assert statuses[400] > 30
    assert num_tasks() <= before + 1  # a connection that is just being closed
    assert httpx.get(f"{service.url}/ready").status_code == 200


@pytest.mark.slow
def test_ten_thousand_random_bodies_leak_nothing(service: TinyService) -> None:
    bombard(service, count=1000, seed=2)
    service.wait_until_idle()
    before = num_tasks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bombard(service, count=10_000, seed=3)
    service.wait_until_idle()
    assert num_tasks() <= before[0] + 1
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before[1]
    assert grown_kib < 50 * 1024, grown_kib
    assert httpx.get(f"{service.url}/ready").status_code == 200
