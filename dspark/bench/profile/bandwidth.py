"""Measures the memory bandwidth that bounds a pass over all weights."""

import torch

from dspark.bench.workloads.timing import Case

_LEAST_BYTES = 64 << 20  # less would fit in a cache


def read_sweep(num_bytes: int, device: torch.device) -> tuple[Case, int]:
    """Return a case that reads a buffer of about num_bytes once, and its size in bytes.

    It sums in float32, one vector addition per load, and is therefore bound by memory.
    """
    count = max(num_bytes, _LEAST_BYTES) // 4
    buffer = torch.ones(count, dtype=torch.float32, device=device)
    return buffer.sum, 4 * count
