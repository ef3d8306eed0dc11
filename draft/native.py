"""Reader of DeepSpec's own config.json: the target's config with a draft's fields added."""

from typing import cast

from draft.config import DSparkConfig, LayerConfig, MarkovKind, TargetFacts, check_taps
from draft.errors import DraftLoadError
from draft.fields import Fields

_ARCHITECTURE = "Qwen3DSparkModel"
_UNSUPPORTED = {
    "Gemma4DSparkModel": "values are normed keys without a projection of their own, embeddings "
    "are scaled and logits capped; none of this is implemented",
}
_MARKOV_KINDS = ("vanilla", "gated", "rnn")
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_native(fields: Fields, *, target: TargetFacts) -> DSparkConfig:
    """Canonical form of a DeepSpec config.

    Raises DraftLoadError for whatever is missing, unknown, or does not fit the target.
    """
    _check_architecture(fields)
    _check_fits("hidden_size", fields.integer("hidden_size", minimum=1), target.hidden_size)
    _check_fits("vocab_size", fields.integer("vocab_size", minimum=1), target.vocab_size)
    num_target_layers = fields.integer("num_target_layers", minimum=1, default=target.num_layers)
    _check_fits("num_target_layers", num_target_layers, target.num_layers)
    fields.choice("hidden_act", ["silu"], default="silu")
    if not fields.flag("sample_from_anchor", default=True):
        raise DraftLoadError("sample_from_anchor", found=False, accepted="true in this format")
    num_heads, num_kv_heads, head_dim = _heads(fields)
    kind, rank = _markov(fields)
    has_confidence, with_markov = _confidence(fields, has_markov=kind is not None)
    return DSparkConfig(
        hidden_size=target.hidden_size,
        intermediate_size=fields.integer("intermediate_size", minimum=1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=fields.positive_number("rms_norm_eps"),
        attention_bias=fields.flag("attention_bias", default=False),
        layers=_layers(fields),
        block_size=fields.integer("block_size", minimum=1),
        mask_token_id=_mask_token_id(fields, vocab_size=target.vocab_size),
        tap_layers=_taps(fields, target),
        markov_kind=kind,
        markov_rank=rank,
        has_confidence_head=has_confidence,
        confidence_with_markov=with_markov,
        ties_embeddings=fields.flag("tie_word_embeddings", default=False),
    )


def _check_architecture(fields: Fields) -> None:
    found = fields.find("architectures")
    name = found[0] if isinstance(found, list) and found else found
    name = None if name is None else str(name)
    if name == _ARCHITECTURE:
        return
    accepted = _ARCHITECTURE
    if name in _UNSUPPORTED:
        accepted += f" (of {name}, {_UNSUPPORTED[name]})"
    raise DraftLoadError("architectures", found=name, accepted=accepted)


def _check_fits(field: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise DraftLoadError(field, found=found, accepted=f"{wanted}, as in the target")


def _heads(fields: Fields) -> tuple[int, int, int]:
    num_heads = fields.integer("num_attention_heads", minimum=1)
    num_kv_heads = fields.integer("num_key_value_heads", minimum=1)
    head_dim = fields.integer("head_dim", minimum=2)
    if num_heads % num_kv_heads:
        wanted = f"a divisor of num_attention_heads, which is {num_heads}"
        raise DraftLoadError("num_key_value_heads", found=num_kv_heads, accepted=wanted)
    if head_dim % 2:
        raise DraftLoadError("head_dim", found=head_dim, accepted="an even number")
    return num_heads, num_kv_heads, head_dim


def _mask_token_id(fields: Fields, *, vocab_size: int) -> int:
    mask_token_id = fields.integer("mask_token_id", minimum=0)
    if mask_token_id >= vocab_size:
        wanted = f"0 to {vocab_size - 1}"
        raise DraftLoadError("mask_token_id", found=mask_token_id, accepted=wanted)
    return mask_token_id


def _taps(fields: Fields, target: TargetFacts) -> tuple[int, ...]:
    taps = fields.integers("target_layer_ids")
    check_taps("target_layer_ids", taps, num_layers=target.num_layers)
    return taps


def _markov(fields: Fields) -> tuple[MarkovKind | None, int]:
    rank = fields.integer("markov_rank", minimum=0, default=0)
    if rank == 0:
        return None, 0
    return cast(MarkovKind, fields.choice("markov_head_type", _MARKOV_KINDS)), rank


def _confidence(fields: Fields, *, has_markov: bool) -> tuple[bool, bool]:
    """An absent switch means on, as other engines read it; the loader then wants the tensors."""
    if not fields.flag("enable_confidence_head", default=True):
        return False, False
    with_markov = fields.flag("confidence_head_with_markov")
    if with_markov and not has_markov:
        wanted = "false when markov_rank is 0"
        raise DraftLoadError("confidence_head_with_markov", found=True, accepted=wanted)
    return True, with_markov


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    num_layers = fields.integer("num_hidden_layers", minimum=1)
    types = fields.choices("layer_types", [_FULL, _SLIDING]) or (_FULL,) * num_layers
    if len(types) != num_layers:
        wanted = f"{num_layers} items, one for each of num_hidden_layers"
        raise DraftLoadError("layer_types", found=f"{len(types)} items", accepted=wanted)
    window = _sliding_window(fields)
    return tuple(
        LayerConfig(
            rope_theta=_rope_theta(fields, layer_type),
            sliding_window=window if layer_type == _SLIDING else None,
        )
        for layer_type in types
    )


def _sliding_window(fields: Fields) -> int | None:
    """Null is no window, and never a window of nothing."""
    if fields.find("sliding_window") is None:
        return None
    window = fields.integer("sliding_window", minimum=1)
    return window if fields.flag("use_sliding_window", default=True) else None


def _rope_theta(fields: Fields, layer_type: str) -> float:
    """Newer configs nest it, by layer type or not; older ones have it at the top."""
    _check_plain_rope(fields.section("rope_scaling"), "rope_scaling")
    _check_full_rotary(fields)
    rope = fields.section("rope_parameters")
    _check_plain_rope(rope, "rope_parameters")
    if rope is not None and rope.find("rope_theta") is None:
        field = layer_type if rope.find(layer_type) is not None else _FULL
        rope = rope.section(field)
        _check_plain_rope(rope, f"rope_parameters.{field}")
    if rope is None:
        rope = fields
    return rope.positive_number("rope_theta")


def _check_plain_rope(rope: Fields | None, field: str) -> None:
    if rope is None:
        return
    kind = rope.find("rope_type") or rope.find("type") or "default"
    if kind != "default":
        raise DraftLoadError(f"{field}.rope_type", found=kind, accepted="default")
    _check_full_rotary(rope)


def _check_full_rotary(rope: Fields) -> None:
    factor = rope.find("partial_rotary_factor")
    if factor not in (None, 1):
        raise DraftLoadError("partial_rotary_factor", found=factor, accepted="1")
