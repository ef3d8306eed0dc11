"""Copies host arrays to a device without waiting for it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int32
from torch import Tensor


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy the array to the device; through pinned memory, so asynchronously, to a GPU."""
    return _from_host(array, device).to(device, non_blocking=True)


def overwrite(buffer: Tensor, array: Int32[np.ndarray, "*N"]) -> None:
    """Copy the array into `buffer`, whose address captured graphs keep reading."""
    buffer.copy_(_from_host(array, buffer.device), non_blocking=True)


def _from_host(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor
