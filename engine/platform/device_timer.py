"""Waiting for a device, where a clock is read around its work and nowhere else."""

import time
from collections.abc import Callable

import torch


def _finish_work(device: torch.device) -> None:
    """A device that works on its own is waited for before the clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(
    run: Callable[[], object],
    device: torch.device,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """How long a call takes, until the device is done with it; earlier work is waited for first."""
    _finish_work(device)
    started = clock()
    run()
    _finish_work(device)
    return clock() - started
