"""Host integers to device tensors, in one transfer."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


def upload(arrays: list[IntArray], device: torch.device) -> list[Tensor]:
    """The arrays as int64 tensors of the same shapes, carried over by a single copy.

    From pinned memory the copy to a GPU does not wait, so it is no synchronisation.
    """
    flat = torch.from_numpy(np.concatenate([a.reshape(-1) for a in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    pieces = torch.split(flat, [a.size for a in arrays])
    return [piece.view(a.shape) for piece, a in zip(pieces, arrays, strict=True)]
