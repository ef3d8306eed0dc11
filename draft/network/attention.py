"""Defines the draft layer's attention: context KV and the block's bidirectional attention."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from draft.network.norm import RMSNorm
from draft.network.rotary import RotaryTable, Rotation, rotate


@runtime_checkable
class BlockAttend(Protocol):
    """Computes a block's attention: over paged KV when serving, over dense KV in training."""

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "T Hkv D"],
        values: Float[Tensor, "T Hkv D"],
        *,
        scale: float,
        window: int | None,
    ) -> Float[Tensor, "T H D"]:
        """Attend from each slot to the context before its anchor and to all slots of its block.

        keys and values are the block's, already rotated. window: see AttentionOptions.
        """
        ...


class BlockAttention(nn.Module):
    """Computes one layer's attention. Context and block share k_proj, v_proj and k_norm.

    Context keys are computed from the projected taps, block keys from the layer's input.
    """

    def __init__(
        self,
        *,
        layer: int,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        eps: float,
        window: int | None,
        rotary: RotaryTable,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.window = window
        self.q_proj: nn.Module = nn.Linear(hidden_size, num_heads * head_dim, bias=bias)
        self.k_proj: nn.Module = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=bias)
        self.v_proj: nn.Module = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=bias)
        self.o_proj: nn.Module = nn.Linear(num_heads * head_dim, hidden_size, bias=bias)
        self.q_norm = RMSNorm(head_dim, eps=eps)
        self.k_norm = RMSNorm(head_dim, eps=eps)
        self.rotary = rotary

    def forward(
        self, x: Float[Tensor, "T E"], rotation: Rotation, block: BlockAttend
    ) -> Float[Tensor, "T E"]:
        query = rotate(self.q_norm(self._heads(self.q_proj(x))), rotation)
        keys, values = self.keys_values(x, rotation)
        attended = block.attend(
            self.layer, query, keys, values, scale=self.head_dim**-0.5, window=self.window
        )
        out: Tensor = self.o_proj(attended.flatten(1))
        return out

    def keys_values(
        self, x: Float[Tensor, "N E"], rotation: Rotation
    ) -> tuple[Float[Tensor, "N H D"], Float[Tensor, "N H D"]]:
        """Compute keys (normed and rotated) and values, of block slots or context tokens."""
        keys = rotate(self.k_norm(self._heads(self.k_proj(x))), rotation)
        return keys, self._heads(self.v_proj(x))

    def _heads(self, projected: Float[Tensor, "N HD"]) -> Float[Tensor, "N H D"]:
        return projected.view(projected.shape[0], -1, self.head_dim)
