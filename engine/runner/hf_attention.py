"""Lets an unmodified Hugging Face decoder read and write the paged pool.

One function is registered as an attention implementation. The model is called with
`batch=LayerAttention`, and transformers passes that keyword to every layer.
"""

from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface

from kv_pool import AttentionOptions

IMPLEMENTATION = "dspark_paged"

# Keywords that do not change the scores.
_NEUTRAL = frozenset({"dropout", "position_ids", "use_cache", "is_causal", "cache_position"})


class LayerAttention(Protocol):
    """Attention of one forward pass: every layer calls it once."""

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "T Hkv D"],
        values: Float[Tensor, "T Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        """Store this step's keys (already rotated) and values, and attend to all valid ones."""
        ...


class UnsupportedAttention(Exception):
    """A layer needs a kind of attention that the paged pool does not support."""


def register() -> None:
    """Register the implementation with transformers; registering twice is harmless.

    No mask function is registered, so transformers builds no masks.
    """
    AttentionInterface.register(IMPLEMENTATION, _attention_forward)


def _attention_forward(
    module: nn.Module,
    query: Float[Tensor, "1 H T D"],
    key: Float[Tensor, "1 Hkv T D"],
    value: Float[Tensor, "1 Hkv T Dv"],
    attention_mask: Tensor | None,
    *,
    batch: LayerAttention,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "1 T H Dv"], None]:
    _refuse_unknown(module, attention_mask, kwargs)
    attended = batch.attend(
        int(module.layer_idx),  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        AttentionOptions(
            scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
            window=sliding_window,
            softcap=softcap,
            sinks=s_aux,
        ),
    )
    return attended[None], None


def _refuse_unknown(module: nn.Module, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    if mask is not None:
        raise UnsupportedAttention("the layer passes an attention mask to attention")
    for name, value in kwargs.items():
        if name not in _NEUTRAL and value is not None and value is not False:
            raise UnsupportedAttention(
                f"layer {getattr(module, 'layer_idx', '?')} passes {name}={value!r} to attention"
            )
