"""Copies numbers between host and device: uploads that do not wait, one download per step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.arrays import IntArray


def upload(arrays: list[IntArray], device: torch.device) -> list[Tensor]:
    """The arrays as int64 tensors of the same shapes, carried over by a single copy.

    From pinned memory the copy to a GPU does not wait, so it is no synchronisation.
    """
    flat = place(np.concatenate([a.reshape(-1) for a in arrays]), device)
    pieces = torch.split(flat, [a.size for a in arrays])
    return [piece.view(a.shape) for piece, a in zip(pieces, arrays, strict=True)]


def place(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """One array of any numbers, shape and dtype kept. From pinned memory, as `upload`."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


FloatArray = npt.NDArray[np.float64]


def download(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """The tensors as float64 arrays of the same shapes, carried over by a single copy.

    Token ids, counts and float32 numbers are all exact in float64.
    """
    flat = torch.cat([tensor.flatten().double() for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    pieces = np.split(flat, ends)
    return [piece.reshape(t.shape) for piece, t in zip(pieces, tensors, strict=True)]
