"""Defines a linear layer with int8 weights, which reads a quarter of float32's bytes.

w ~ q * scale     q [N, K] int8, scale [N] float32: each row's greatest magnitude becomes 127
y = (x q^T) * scale + bias                     in float32, whatever x's dtype is
"""

from collections.abc import Callable
from typing import TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

_LARGEST = 127

# (x float32 [..., K], weight int8 [N, K], scale [N], bias [N] or None) -> [..., N]
Int8Product = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def product_by_pytorch(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    y = F.linear(x, weight.to(x.dtype)) * scale
    return y if bias is None else y + bias


def int8_linear(
    x: Float[Tensor, "*T K"],
    weight: Int[Tensor, "N K"],
    scale: Float[Tensor, " N"],
    bias: Float[Tensor, " N"] | None,
    product: Int8Product,
) -> Float[Tensor, "*T N"]:
    """Multiply in float32; the result has the dtype of x."""
    bias = None if bias is None else bias.float()
    return product(x.float(), weight, scale, bias).to(x.dtype)


class Int8Linear(nn.Module):
    """Replaces an nn.Linear. `product` may be set to another function with the same result."""

    def __init__(self, weight: Int[Tensor, "N K"], scale: Float[Tensor, " N"], bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.product: Int8Product = product_by_pytorch

    @classmethod
    def of(cls, layer: nn.Linear) -> "Int8Linear":
        """Round a layer's weight to the nearest int8, row by row; zeros stay zeros."""
        weight = layer.weight.detach().float()
        greatest = weight.abs().amax(dim=1)
        scale = torch.where(greatest > 0, greatest / _LARGEST, 1.0)
        rounded = (weight / scale[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
        return cls(rounded.to(torch.int8), scale, layer.bias)

    def forward(self, x: Float[Tensor, "*T K"]) -> Float[Tensor, "*T N"]:
        return int8_linear(x, self.weight, self.scale, self.bias, self.product)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def is_matrix(module: nn.Module) -> TypeGuard[nn.Linear | Int8Linear]:
    """Whether a module is a plain linear layer, int8 or not."""
    return type(module) in (nn.Linear, Int8Linear)
