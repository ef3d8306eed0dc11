"""How fast this machine reads memory: the limit of whatever reads every weight once."""

import torch

from dspark.bench.profile.timing import Case

_LEAST_BYTES = 64 << 20  # less would lie in a cache


def read_sweep(num_bytes: int, device: torch.device) -> tuple[Case, int]:
    """A case that reads a buffer of about num_bytes once, with torch's threads; and its bytes.

    A sum in float32: one vector addition for each load, so that memory is what it waits for.
    """
    count = max(num_bytes, _LEAST_BYTES) // 4
    buffer = torch.ones(count, dtype=torch.float32, device=device)
    return buffer.sum, 4 * count
