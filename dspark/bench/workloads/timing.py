"""Times callables in interleaved turns, and calls of a method inside a running engine."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from dspark.bench.workloads.interleaving import alternated

Case = Callable[[], object]
Samples = Mapping[str, list[float]]  # case name -> time in each turn

M = TypeVar("M")


def time_cases(
    cases: Mapping[str, Case], *, turns: int, warm_up: int, time_of: Callable[[Case], float]
) -> Samples:
    """Return the time of every case in each turn; the order alternates between turns."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    with torch.inference_mode():
        for turn in range(warm_up + turns):
            for name in alternated(list(cases), turn):
                times[name].append(time_of(cases[name]))
    return {name: values[warm_up:] for name, values in times.items()}


@contextmanager
def replaced(owner: object, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of one object within the block; may be nested."""
    attributes = vars(owner)
    before = attributes.get(name)
    attributes[name] = method
    try:
        yield
    finally:
        if before is None:
            del attributes[name]
        else:
            attributes[name] = before


@contextmanager
def marked_calls(owner: object, name: str, mark: Callable[[], M]) -> Iterator[list[tuple[M, M]]]:
    """Collect the marks before and after each call of an object's method within the block."""
    method, marks = getattr(owner, name), list[tuple[M, M]]()

    def marked(*args: Any, **options: Any) -> Any:
        begin = mark()
        try:
            return method(*args, **options)
        finally:
            marks.append((begin, mark()))

    with replaced(owner, name, marked):
        yield marks
