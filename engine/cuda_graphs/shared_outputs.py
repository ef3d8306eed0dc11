"""Keeps the outputs of all recordings of one pass in the same memory."""

import torch
from torch import Tensor


class SharedOutputs:
    """Buffers that recordings of all sizes write their outputs to; one of them runs at a time.

    They lie outside of the recordings' pool, so no other recording overwrites them.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def store(self, name: str, output: Tensor) -> Tensor:
        """Copy an output to the first rows of its buffer, and return these.

        The first run must be of the largest size, before it is captured: it allocates the buffer.
        """
        if name not in self._buffers:
            self._buffers[name] = torch.empty_like(output, memory_format=torch.contiguous_format)
        rows = self._buffers[name][: len(output)]
        return rows.copy_(output)
