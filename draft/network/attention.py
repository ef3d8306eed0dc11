"""Defines the draft layer's attention: context KV and the block's bidirectional attention."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from draft.config import DSparkConfig
from draft.network.norm import RMSNorm, normed
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

    Context keys are computed from the projected taps, block keys from the layer's input. Without
    v_proj the values are the keys before their norm. Some variants norm the values per head,
    without a weight.
    """

    def __init__(self, config: DSparkConfig, *, layer: int, rotary: RotaryTable) -> None:
        super().__init__()
        size, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        heads, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
        scale = config.variant.attention_scale
        self.layer = layer
        self.head_dim = head_dim
        self.window = config.layers[layer].sliding_window
        self.scale = head_dim**-0.5 if scale is None else scale
        self.norms_values = config.variant.norms_values
        self.q_proj: nn.Module = nn.Linear(size, heads, bias=bias)
        self.k_proj: nn.Module = nn.Linear(size, kv, bias=bias)
        self.v_proj: nn.Module | None = (
            None if config.variant.shares_kv else nn.Linear(size, kv, bias=bias)
        )
        self.o_proj: nn.Module = nn.Linear(heads, size, bias=bias)
        self.q_norm = RMSNorm(head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, eps=config.rms_norm_eps)
        self.rotary = rotary

    @property
    def kv_projections(self) -> tuple[nn.Module, ...]:
        """Return k_proj and, unless keys and values share it, v_proj."""
        return (self.k_proj,) if self.v_proj is None else (self.k_proj, self.v_proj)

    def forward(
        self, x: Float[Tensor, "T E"], rotation: Rotation, block: BlockAttend
    ) -> Float[Tensor, "T E"]:
        query = rotate(self.q_norm(self._heads(self.q_proj(x))), rotation)
        keys, values = self.keys_values(x, rotation)
        attended = block.attend(
            self.layer, query, keys, values, scale=self.scale, window=self.window
        )
        out: Tensor = self.o_proj(attended.flatten(1))
        return out

    def keys_values(
        self, x: Float[Tensor, "N E"], rotation: Rotation
    ) -> tuple[Float[Tensor, "N H D"], Float[Tensor, "N H D"]]:
        """Compute keys (normed and rotated) and values, of block slots or context tokens."""
        projected = self._heads(self.k_proj(x))
        values = projected if self.v_proj is None else self._heads(self.v_proj(x))
        if self.norms_values:
            values = normed(values, self.k_norm.eps)
        return rotate(self.k_norm(projected), rotation), values

    def _heads(self, projected: Float[Tensor, "N HD"]) -> Float[Tensor, "N H D"]:
        return projected.view(projected.shape[0], -1, self.head_dim)
