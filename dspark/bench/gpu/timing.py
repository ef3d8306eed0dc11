"""Times work between events on the device's stream, which excludes launch overhead."""

import time
from collections.abc import Mapping
from typing import Any

import torch

from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.timing import Case, time_cases

_WARM_UP = 3


class Stopwatch:
    """Marks times on a CUDA stream, or on the host clock without CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ms(self, begin: Any, end: Any) -> float:
        """Return the milliseconds between two marks that the device has passed."""
        return float(begin.elapsed_time(end) if self._is_cuda else 1000 * (end - begin))

    def finish(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()


def in_turns(cases: Mapping[str, Case], *, turns: int, device: torch.device) -> dict[str, Spread]:
    """Return the milliseconds of each case; the order alternates between turns."""
    watch = Stopwatch(device)

    def time_of(case: Case) -> float:
        watch.finish()
        begin = watch.mark()
        case()
        end = watch.mark()
        watch.finish()
        return watch.ms(begin, end)

    times = time_cases(cases, turns=turns, warm_up=_WARM_UP, time_of=time_of)
    return {name: Spread.of(values) for name, values in times.items()}


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Return the bytes read and written per second by a copy on the device."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    (spread,) = in_turns({"": lambda: target.copy_(source)}, turns=10, device=device).values()
    return 2 * num_bytes / (spread.median / 1000)


def product_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the operations per second of a square matrix product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    (spread,) = in_turns({"": lambda: a @ b}, turns=10, device=device).values()
    return 2 * size**3 / (spread.median / 1000)
