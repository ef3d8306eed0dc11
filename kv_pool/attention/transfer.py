"""Copies host arrays to a device without waiting for it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int32
from torch import Tensor


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy the array to the device; through pinned memory, so asynchronously, to a GPU."""
    return _from_host(array, device).to(device, non_blocking=True)


def overwrite(parts: Sequence[tuple[Tensor, Int32[np.ndarray, "..."]]]) -> None:
    """Copy arrays into buffers of one device, whose addresses captured graphs keep reading.

    One copy carries all of them; the device distributes them.
    """
    arrays = [array.reshape(-1) for _, array in parts]
    flat = to_device(np.concatenate(arrays), parts[0][0].device)
    pieces = torch.split(flat, [array.size for array in arrays])
    for (buffer, array), piece in zip(parts, pieces, strict=True):
        buffer.copy_(piece.view(array.shape))


def _from_host(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor
