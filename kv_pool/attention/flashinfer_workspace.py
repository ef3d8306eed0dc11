"""How much scratch memory FlashInfer's plans need, and where it lies."""

import torch
from torch import Tensor

_MIB = 1024 * 1024
WORKSPACE_BYTES = 384 * _MIB  # to begin with; enough for 128 windows of 8 rows and 32 heads of 128
_FLOAT32 = 4
_LARGEST_TILE = 128  # query rows, times heads of one KV head, that FlashInfer takes at once
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
    """What FlashInfer's plan wants for parts of outputs, at most, when keys are split.

    A plan splits until the device is full, and no further. One for a graph reserves tiles for
    fixed_rows queries of fixed_sequences sequences in whatever way they are spread, and always
    keeps parts.
    """
    group = num_qo_heads // num_kv_heads
    full = _PROGRAMS_PER_MULTIPROCESSOR * multiprocessors // num_kv_heads
    spread = -(-fixed_rows * group // _LARGEST_TILE) + fixed_sequences
    rows = num_qo_heads * max(1, full, spread) * _LARGEST_TILE
    return rows * (head_dim + 1) * _FLOAT32 + _MIB  # outputs, sums, and room for alignment


class Workspace:
    """Scratch memory that plans share, for they run one after another. It grows when asked.

    Whoever has an earlier and smaller piece keeps it: graphs know it by its address.
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
        if self._memory.numel() < num_bytes:
            self._memory = self._memory.new_empty(-(-num_bytes // _MIB) * _MIB)
        return self._memory
