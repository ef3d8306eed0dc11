"""Waiting for a device, where a clock is read around its work and nowhere else."""

import torch


def finish_work(device: torch.device) -> None:
    """A device that works on its own is waited for before the clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
