"""Reads the decoder fields of a draft's config: heads, layers, RoPE. Used by both formats."""

from draft.checkpoint.fields import Fields
from draft.config import LayerConfig
from draft.errors import DraftLoadError

_FULL, _SLIDING = "full_attention", "sliding_attention"


def check_fits(fields: Fields, name: str, wanted: int, *, found: int | None = None) -> None:
    """Check that a size equals the target's. found: the default of an absent field."""
    size = fields.integer(name, minimum=1, default=found)
    if size != wanted:
        raise DraftLoadError(fields.label(name), found=size, accepted=f"{wanted}, as in the target")


def read_heads(fields: Fields) -> tuple[int, int, int]:
    """Read num_heads, num_kv_heads and head_dim."""
    num_heads = fields.integer("num_attention_heads", minimum=1)
    num_kv_heads = fields.integer("num_key_value_heads", minimum=1)
    head_dim = fields.integer("head_dim", minimum=2)
    if num_heads % num_kv_heads:
        wanted = f"a divisor of num_attention_heads, which is {num_heads}"
        raise DraftLoadError(
            fields.label("num_key_value_heads"), found=num_kv_heads, accepted=wanted
        )
    if head_dim % 2:
        raise DraftLoadError(fields.label("head_dim"), found=head_dim, accepted="an even number")
    return num_heads, num_kv_heads, head_dim


def read_layers(fields: Fields, *, causal_windows: bool = False) -> tuple[LayerConfig, ...]:
    """Read every layer's attention type and RoPE.

    causal_windows: sliding-window layers do not attend to later slots of the block.
    """
    num_layers = fields.integer("num_hidden_layers", minimum=1)
    types = fields.choices("layer_types", [_FULL, _SLIDING]) or (_FULL,) * num_layers
    if len(types) != num_layers:
        wanted = f"{num_layers} items, one for each of num_hidden_layers"
        raise DraftLoadError(
            fields.label("layer_types"), found=f"{len(types)} items", accepted=wanted
        )
    window = _sliding_window(fields)
    return tuple(
        LayerConfig(
            rope_theta=_rope_theta(fields, layer_type),
            sliding_window=window if layer_type == _SLIDING else None,
            causal=causal_windows and layer_type == _SLIDING and window is not None,
        )
        for layer_type in types
    )


def _sliding_window(fields: Fields) -> int | None:
    """Read the window; null means no window."""
    if fields.find("sliding_window") is None:
        return None
    window = fields.integer("sliding_window", minimum=1)
    return window if fields.flag("use_sliding_window", default=True) else None


def _rope_theta(fields: Fields, layer_type: str) -> float:
    """Read theta: newer configs nest it, by layer type or not; older ones do not."""
    _check_plain_rope(fields.section("rope_scaling"))
    _check_full_rotary(fields)
    rope = fields.section("rope_parameters")
    _check_plain_rope(rope)
    if rope is not None and rope.find("rope_theta") is None:
        field = layer_type if rope.find(layer_type) is not None else _FULL
        rope = rope.section(field)
        _check_plain_rope(rope)
    if rope is None:
        rope = fields
    return rope.positive_number("rope_theta")


def _check_plain_rope(rope: Fields | None) -> None:
    if rope is None:
        return
    kind = rope.find("rope_type") or rope.find("type") or "default"
    if kind != "default":
        raise DraftLoadError(rope.label("rope_type"), found=kind, accepted="default")
    _check_full_rotary(rope)


def _check_full_rotary(rope: Fields) -> None:
    factor = rope.find("partial_rotary_factor")
    if factor not in (None, 1):
        raise DraftLoadError(rope.label("partial_rotary_factor"), found=factor, accepted="1")
