"""Sizes and allocates the workspace of FlashInfer's plans."""

import torch
from torch import Tensor

_MIB = 1024 * 1024
WORKSPACE_BYTES = 384 * _MIB  # initially; enough for 128 windows of 8 rows and 32 heads of 128
_FLOAT32 = 4
_LARGEST_TILE = 128  # query rows, times heads of one KV head, of FlashInfer's largest tile
_PROGRAMS_PER_MULTIPROCESSOR = 2


def workspace_bytes(
    *,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    multiprocessors: int,
    fixed_rows: int = 0,
    fixed_sequences: int = 0,
) -> int:
    """Bound the workspace of a FlashInfer plan: partial outputs when keys are split.

    A plan splits keys until the device is full. A plan for a graph always keeps partial outputs,
    and reserves tiles for any distribution of fixed_rows queries over fixed_sequences sequences.
    """
    group = num_qo_heads // num_kv_heads
    full = _PROGRAMS_PER_MULTIPROCESSOR * multiprocessors // num_kv_heads
    spread = -(-fixed_rows * group // _LARGEST_TILE) + fixed_sequences
    rows = num_qo_heads * max(1, full, spread) * _LARGEST_TILE
    return rows * (head_dim + 1) * _FLOAT32 + _MIB  # outputs, sums, and room for alignment


class Workspace:
    """Provides scratch memory that all plans share: they run one after another.

    When it grows, earlier plans keep their smaller memory: graphs contain its address.
    """

    def __init__(self, device: torch.device, *, num_bytes: int = WORKSPACE_BYTES) -> None:
        self.device = device
        self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    @property
    def multiprocessors(self) -> int:
        if self.device.type != "cuda":
            return 1
        count: int = torch.cuda.get_device_properties(self.device).multi_processor_count
        return count

    def at_least(self, num_bytes: int) -> Tensor:
        """Return the workspace, grown to num_bytes if needed."""
        if self._memory.numel() < num_bytes:
            self._memory = self._memory.new_empty(-(-num_bytes // _MIB) * _MIB)
        return self._memory
