"""Times work on a device, including what it computes asynchronously."""

import time
from collections.abc import Callable

import torch


def _finish_work(device: torch.device) -> None:
    """Wait until an asynchronous device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(
    run: Callable[[], object],
    device: torch.device,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure the seconds of a call until the device is done with it, without earlier work."""
    _finish_work(device)
    started = clock()
    run()
    _finish_work(device)
    return clock() - started
