"""Copies numbers between host and device: uploads that do not wait, one download per step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.arrays import IntArray


def upload(arrays: list[IntArray], device: torch.device) -> list[Tensor]:
    """Copy arrays to the device as int64 tensors of the same shapes, with a single copy.

    From pinned memory the copy to a GPU does not wait, so the host is not synchronised.
    """
    flat = place(np.concatenate([a.reshape(-1) for a in arrays]), device)
    pieces = torch.split(flat, [a.size for a in arrays])
    return [piece.view(a.shape) for piece, a in zip(pieces, arrays, strict=True)]


def place(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy one array of any dtype to the device, from pinned memory as `upload` does."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


FloatArray = npt.NDArray[np.float64]


def download(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """Copy tensors to the host as float64 arrays of the same shapes, with a single copy.

    Token ids, counts and float32 numbers are exact in float64.
    """
    flat = torch.cat([tensor.flatten().double() for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    pieces = np.split(flat, ends)
    return [piece.reshape(t.shape) for piece, t in zip(pieces, tensors, strict=True)]
