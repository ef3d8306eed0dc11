"""Time on the device: between events on its own stream, so that launching is not counted."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from dspark.bench.report.statistics import Spread

Case = Callable[[], object]
_WARM_UP = 3


class Stopwatch:
    """Marks on a CUDA stream, or on the host's clock where there is none."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ms(self, begin: Any, end: Any) -> float:
        """Milliseconds between two marks that the device has passed."""
        return float(begin.elapsed_time(end) if self._is_cuda else 1000 * (end - begin))

    def finish(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()


def in_turns(cases: Mapping[str, Case], *, turns: int, device: torch.device) -> dict[str, Spread]:
    """Milliseconds of each case; every other turn goes backwards."""
    watch = Stopwatch(device)
    found: dict[str, list[float]] = {name: [] for name in cases}
    with torch.inference_mode():
        for turn in range(_WARM_UP + turns):
            names = list(cases) if turn % 2 == 0 else list(cases)[::-1]
            for name in names:
                watch.finish()
                begin = watch.mark()
                cases[name]()
                end = watch.mark()
                watch.finish()
                found[name].append(watch.ms(begin, end))
    return {name: Spread.of(values[_WARM_UP:]) for name, values in found.items()}


@contextmanager
def replaced(owner: object, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Within the block this object's method is another one; may be nested."""
    own = vars(owner)
    before = own.get(name)
    own[name] = method
    try:
        yield
    finally:
        if before is None:
            del own[name]
        else:
            own[name] = before


@contextmanager
def watched(owner: object, name: str, watch: Stopwatch) -> Iterator[list[tuple[Any, Any]]]:
    """Within the block, the marks around every call of this object's method."""
    method, marks = getattr(owner, name), list[tuple[Any, Any]]()

    def marked(*args: Any, **options: Any) -> Any:
        begin = watch.mark()
        result = method(*args, **options)
        marks.append((begin, watch.mark()))
        return result

    with replaced(owner, name, marked):
        yield marks


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Bytes read and written a second by a copy on the device."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    (spread,) = in_turns({"": lambda: target.copy_(source)}, turns=10, device=device).values()
    return 2 * num_bytes / (spread.median / 1000)


def product_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations a second of a square matrix product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    (spread,) = in_turns({"": lambda: a @ b}, turns=10, device=device).values()
    return 2 * size**3 / (spread.median / 1000)
