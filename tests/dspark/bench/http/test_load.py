"""When requests start."""

import asyncio
import time
from itertools import pairwise
from statistics import mean

import pytest

from dspark.bench.http.load import ClosedLoop, PoissonArrivals, arrivals
from dspark.bench.http.streamed_request import RequestRecord


def test_a_closed_loop_keeps_its_clients_busy_and_sends_every_prompt_once() -> None:
    is_open = peak = 0

    async def send(prompt: int) -> RequestRecord:
        nonlocal is_open, peak
        is_open += 1
        peak = max(peak, is_open)
        await asyncio.sleep(0.001)
        is_open -= 1
        return RequestRecord(prompt, 0.0)

    records = asyncio.run(ClosedLoop(3).run(send, 10))
    assert peak == 3
    assert sorted(record.prompt for record in records) == list(range(10))


def test_arrivals_do_not_wait_for_answers() -> None:
    started: list[float] = []

    async def send(prompt: int) -> RequestRecord:
        started.append(time.perf_counter())
        await asyncio.sleep(0.2)
        return RequestRecord(prompt, 0.0)

    asyncio.run(PoissonArrivals(500.0, seed=1).run(send, 20))
    assert started[-1] - started[0] < 0.2  # all had started before the first was answered


def test_arrivals_are_those_of_a_poisson_process_and_the_same_for_one_seed() -> None:
    times = arrivals(4000, rate=8.0, seed=3)
    gaps = [b - a for a, b in pairwise(times)]
    assert times[0] == 0
    assert mean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert sum(gap > 1 / 8 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)  # 1/e
    assert arrivals(5, rate=8.0, seed=3) == times[:5]
    assert arrivals(5, rate=8.0, seed=4) != times[:5]
