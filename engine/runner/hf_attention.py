"""Lets an unmodified Hugging Face decoder read and write the paged pool.

One function is registered as an attention implementation. It calls the LayerAttention of the
running pass, which a context variable holds: some layers do not pass keywords to attention.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface

from kv_pool import AttentionOptions

IMPLEMENTATION = "dspark_paged"
_WINDOW = "_dspark_window"  # attribute of attention modules

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


_running: ContextVar[LayerAttention] = ContextVar("running pass")


@contextmanager
def attending_with(attention: LayerAttention) -> Iterator[None]:
    """Let every layer that runs within the block call this attention."""
    token = _running.set(attention)
    try:
        yield
    finally:
        _running.reset(token)


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
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "1 T H Dv"], None]:
    _refuse_unknown(module, attention_mask, kwargs)
    attended = _running.get().attend(
        int(module.layer_idx),  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        AttentionOptions(
            scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
            window=sliding_window if sliding_window is not None else _named_window(module),
            softcap=softcap,
            sinks=s_aux,
        ),
    )
    return attended[None], None


def set_windows(model: nn.Module, windows: Sequence[int | None]) -> None:
    """Set the window of each layer that passes none to attention, because it masks by itself."""
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and layer < len(windows):
            module.__dict__[_WINDOW] = windows[layer]


def _named_window(module: nn.Module) -> int | None:
    window: int | None = module.__dict__.get(_WINDOW)
    return window


def _refuse_unknown(module: nn.Module, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    if mask is not None:
        raise UnsupportedAttention("the layer passes an attention mask to attention")
    for name, value in kwargs.items():
        if name not in _NEUTRAL and value is not None and value is not False:
            raise UnsupportedAttention(
                f"layer {getattr(module, 'layer_idx', '?')} passes {name}={value!r} to attention"
            )
