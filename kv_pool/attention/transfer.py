"""Host integers on their way to a device."""

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor


def to_device(array: Int32[np.ndarray, "*N"], device: torch.device) -> Tensor:
    """The array as an int32 tensor. From pinned memory the copy to a GPU waits for nothing."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def overwrite(buffer: Tensor, array: Int32[np.ndarray, "*N"]) -> None:
    """Put the array where `buffer` is; a captured graph reads the same memory again."""
    tensor = torch.from_numpy(array)
    if buffer.device.type == "cuda":
        tensor = tensor.pin_memory()
    buffer.copy_(tensor, non_blocking=True)
