"""Times cases of a profile in interleaved turns."""

import time
from collections.abc import Callable, Mapping

import torch

from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.timing import Case, Samples, time_cases
from engine.platform.device_timer import seconds_of


def seconds_in_turns(
    cases: Mapping[str, Case],
    *,
    turns: int,
    device: torch.device,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Return the seconds of every case in each turn, until the device has finished."""
    return time_cases(
        cases,
        turns=turns,
        warm_up=warm_up,
        time_of=lambda case: seconds_of(case, device, clock=clock),
    )


def ms(seconds: list[float]) -> Spread:
    return Spread.of([1000 * value for value in seconds])


def difference_ms(whole: list[float], without: list[float]) -> Spread:
    """Return the cost of a part: the whole less the rest, turn by turn; noise may be below 0."""
    return ms([a - b for a, b in zip(whole, without, strict=True)])
