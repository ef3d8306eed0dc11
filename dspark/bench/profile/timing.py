"""Times of a few things that take turns, so that whatever the machine does meets all of them."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from dspark.bench.report.statistics import Spread
from engine.platform.device_timer import seconds_of

Case = Callable[[], object]
Samples = Mapping[str, list[float]]  # seconds, by the case's name, turn by turn


def in_turns(
    cases: Mapping[str, Case],
    *,
    turns: int,
    device: torch.device,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Seconds of every case in each turn; every other turn goes backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    with torch.inference_mode():
        for turn in range(warm_up + turns):
            for name in names if turn % 2 == 0 else reversed(names):
                seconds[name].append(seconds_of(cases[name], device, clock=clock))
    return {name: values[warm_up:] for name, values in seconds.items()}


def ms(seconds: list[float]) -> Spread:
    return Spread.of([1000 * value for value in seconds])


def difference_ms(whole: list[float], without: list[float]) -> Spread:
    """What a part costs: with it less without it, turn by turn. May fall below 0 by noise."""
    return ms([a - b for a, b in zip(whole, without, strict=True)])


@contextmanager
def timed_method(
    owner: object, name: str, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[list[float]]:
    """Within the block, seconds of every call of this object's method are added to the list."""
    method, seconds = getattr(owner, name), list[float]()

    def timed(*args: object, **options: object) -> object:
        started = clock()
        try:
            return method(*args, **options)
        finally:
            seconds.append(clock() - started)

    vars(owner)[name] = timed
    try:
        yield seconds
    finally:
        del vars(owner)[name]
