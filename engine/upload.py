"""Host numbers to device tensors, without waiting for the device."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


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
