"""Implements rotary position embedding (RoPE) in NeoX style halves."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Rotation(NamedTuple):
    """Holds the rotary factors of T tokens, broadcast over heads."""

    cos: Float[Tensor, "T 1 D"]
    sin: Float[Tensor, "T 1 D"]  # the first half is negated: see `rotate`


class RotaryTable(nn.Module):
    """Stores the rotary factors of all positions in float32: [P, 2, D].

    It moves to another device with the network but is not a buffer: casting the network must
    leave it in float32. At position 5000 a bfloat16 angle is off by whole turns.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        theta: float,
        num_positions: int,
        device: torch.device,
        fraction: float = 1.0,
    ) -> None:
        """fraction: of the frequencies, the fastest ones; the others are zero."""
        super().__init__()
        self.theta = theta
        self.fraction = fraction
        self._table = _factors(head_dim, theta, fraction, num_positions, device)

    @property
    def num_positions(self) -> int:
        return self._table.shape[0]

    @property
    def factors(self) -> Float[Tensor, "P 2 D"]:
        """Return, by position, cosines and sines; the first half of the sines is negated."""
        return self._table

    def at(self, positions: Int[Tensor, "T"]) -> Rotation:
        """Look up each position's rotation. Raises IndexError outside the table (on a CPU)."""
        cos, sin = self._table.index_select(0, positions).unsqueeze(2).unbind(1)
        return Rotation(cos, sin)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RotaryTable":
        self._table = self._table.to(fn(self._table).device)
        return self


def rotate(x: Float[Tensor, "T H D"], rotation: Rotation) -> Float[Tensor, "T H D"]:
    """Compute x * cos + rotate_half(x) * sin in float32; the result has the dtype of x.

    rotate_half(x) is [-x2, x1]; with the sign kept in `sin`, rolling by half gives [x2, x1].
    """
    turned = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * rotation.cos, turned, rotation.sin).to(x.dtype)


def _factors(
    head_dim: int, theta: float, fraction: float, num_positions: int, device: torch.device
) -> Float[Tensor, "P 2 D"]:
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies = 1.0 / theta**steps
    frequencies[int(fraction * head_dim // 2) :] = 0
    positions = torch.arange(num_positions, dtype=torch.float32, device=device)
    angles = positions[:, None] * frequencies  # (P, D / 2)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], dim=1)
