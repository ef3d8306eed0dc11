"""Device tensors to the host, in one transfer: the other way of engine.upload."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatArray = npt.NDArray[np.float64]


def download(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """The tensors as float64 arrays of the same shapes, carried over by a single copy.

    Token ids, counts and float32 numbers are all exact in float64.
    """
    flat = torch.cat([tensor.flatten().double() for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    pieces = np.split(flat, ends)
    return [piece.reshape(t.shape) for piece, t in zip(pieces, tensors, strict=True)]
