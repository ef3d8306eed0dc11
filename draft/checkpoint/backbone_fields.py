"""Reads the decoder fields of a draft's config: heads, layers, RoPE. Used by both formats."""

from collections.abc import Sequence
from typing import NamedTuple

from draft.checkpoint.fields import Fields
from draft.config import LayerConfig
from draft.errors import DraftLoadError

_FULL, _SLIDING = "full_attention", "sliding_attention"
_PROPORTIONAL = "proportional"


class Heads(NamedTuple):
    """Holds the sizes of a decoder's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def check_fits(fields: Fields, name: str, wanted: int, *, found: int | None = None) -> None:
    """Check that a size equals the target's. found: the default of an absent field."""
    size = fields.integer(name, minimum=1, default=found)
    if size != wanted:
        raise DraftLoadError(fields.label(name), found=size, accepted=f"{wanted}, as in the target")


def read_heads(
    fields: Fields, *, kv_heads: str = "num_key_value_heads", head_dim: str = "head_dim"
) -> Heads:
    """Read the sizes of attention. kv_heads, head_dim: names of their fields."""
    heads = Heads(
        fields.integer("num_attention_heads", minimum=1),
        fields.integer(kv_heads, minimum=1),
        fields.integer(head_dim, minimum=2),
    )
    if heads.num_heads % heads.num_kv_heads:
        wanted = f"a divisor of num_attention_heads, which is {heads.num_heads}"
        raise DraftLoadError(fields.label(kv_heads), found=heads.num_kv_heads, accepted=wanted)
    if heads.head_dim % 2:
        raise DraftLoadError(
            fields.label(head_dim), found=heads.head_dim, accepted="an even number"
        )
    return heads


def read_layers(
    fields: Fields,
    *,
    kinds: Sequence[str] = (_FULL, _SLIDING),
    causal_windows: bool = False,
    partial_rope: bool = False,
) -> tuple[LayerConfig, ...]:
    """Read every layer's attention type and RoPE.

    kinds: accepted attention types.
    causal_windows: sliding-window layers do not attend to later slots of the block.
    partial_rope: RoPE may rotate a part of the frequencies.
    """
    num_layers = fields.integer("num_hidden_layers", minimum=1)
    types = fields.choices("layer_types", kinds) or (_FULL,) * num_layers
    if len(types) != num_layers:
        wanted = f"{num_layers} items, one for each of num_hidden_layers"
        raise DraftLoadError(
            fields.label("layer_types"), found=f"{len(types)} items", accepted=wanted
        )
    window = _sliding_window(fields)
    ropes = {layer_type: _rope(fields, layer_type, partial=partial_rope) for layer_type in types}
    return tuple(
        LayerConfig(
            rope_theta=ropes[layer_type].positive_number("rope_theta"),
            rotary_fraction=_fraction(ropes[layer_type]),
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


def _rope(fields: Fields, layer_type: str, *, partial: bool) -> Fields:
    """Find the RoPE fields: newer configs nest them, by layer type or not; older ones do not."""
    _check_rope(fields.section("rope_scaling"), partial=False)
    _check_full_rotary(fields)
    rope = fields.section("rope_parameters")
    _check_rope(rope, partial=partial)
    if rope is not None and rope.find("rope_theta") is None:
        field = layer_type if rope.find(layer_type) is not None else _FULL
        rope = rope.section(field)
        _check_rope(rope, partial=partial)
    return fields if rope is None else rope


def _check_rope(rope: Fields | None, *, partial: bool) -> None:
    if rope is None:
        return
    kind = rope.find("rope_type") or rope.find("type") or "default"
    accepted = ["default", _PROPORTIONAL] if partial else ["default"]
    if kind not in accepted:
        raise DraftLoadError(rope.label("rope_type"), found=kind, accepted=" or ".join(accepted))
    if kind == "default":
        _check_full_rotary(rope)


def _check_full_rotary(rope: Fields) -> None:
    factor = rope.find("partial_rotary_factor")
    if factor not in (None, 1):
        raise DraftLoadError(rope.label("partial_rotary_factor"), found=factor, accepted="1")


def _fraction(rope: Fields) -> float:
    """Read the rotated part of the frequencies."""
    if rope.find("partial_rotary_factor") is None:
        return 1.0
    fraction = rope.positive_number("partial_rotary_factor")
    if fraction > 1:
        label = rope.label("partial_rotary_factor")
        raise DraftLoadError(label, found=fraction, accepted="a number above 0, up to 1")
    return fraction
