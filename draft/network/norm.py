"""Defines RMSNorm, with and without a weight."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Computes x / rms(x) * weight over the last dimension, in float32 internally.

    The result has the weight's dtype; when serving, x has it too.
    """

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*N E"]) -> Float[Tensor, "*N E"]:
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)


def normed(x: Float[Tensor, "*N D"], eps: float) -> Float[Tensor, "*N D"]:
    """Compute x / rms(x) over the last dimension, in float32 internally."""
    return F.rms_norm(x, x.shape[-1:], None, eps)
