"""Derives the shape of a draft from the settings and the target."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from draft import DecoderVariant, DraftLoadError, DSparkConfig, LayerConfig
from draft.config import check_taps, gemma4_variant
from dspark.training.config import DesignConfig
from dspark.training.model.target_layers import full_layers
from engine.errors import LoadError
from engine.loading.target import LoadedTarget

_ROPE_THETA = 10_000.0
_USUAL_FEED_FORWARD = 4  # width relative to the hidden size, for targets whose config names none


def design_draft(design: DesignConfig, target: LoadedTarget, *, mask_token_id: int) -> DSparkConfig:
    """Build the config of a draft. Raises LoadError for an invalid shape."""
    target_config: Any = target.model.config.get_text_config()  # type: ignore[union-attr,operator]
    variant = decoder_variant(target)
    num_heads: int = design.num_heads or target_config.num_attention_heads
    own_head_dim, own_kv_heads = _own_heads(target_config)
    head_dim: int = design.head_dim or own_head_dim
    num_kv_heads: int = design.num_kv_heads or own_kv_heads or num_heads
    if num_heads % num_kv_heads:
        raise LoadError(
            f"design.num_kv_heads: found {num_kv_heads}; accepted: a divisor of {num_heads} heads"
        )
    if head_dim % 2:
        raise LoadError(f"design.head_dim: found {head_dim}; accepted: an even number")
    markov_kind = None if design.markov_head == "none" else design.markov_head
    return DSparkConfig(
        hidden_size=target.hidden_size,
        intermediate_size=design.intermediate_size
        or getattr(target_config, "intermediate_size", None)
        or _USUAL_FEED_FORWARD * target.hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=design.draft_vocab_size,
        rms_norm_eps=getattr(target_config, "rms_norm_eps", 1e-6),
        attention_bias=False,
        layers=(_layer(design, target_config, is_partial=variant != DecoderVariant()),)
        * design.num_layers,
        variant=variant,
        block_size=design.block_size,
        mask_token_id=mask_token_id,
        tap_layers=choose_taps(design, num_layers=target.num_layers),
        markov_kind=markov_kind,
        markov_rank=design.markov_rank if markov_kind is not None else 0,
        has_confidence_head=design.confidence_head,
        confidence_with_markov=design.confidence_head and markov_kind is not None,
    )


def decoder_variant(target: LoadedTarget) -> DecoderVariant:
    """Return the decoder of a new draft: Gemma 4's for such a target, else Qwen3's."""
    config: Any = target.model.config.get_text_config()  # type: ignore[union-attr,operator]
    if not config.model_type.startswith("gemma4"):
        return DecoderVariant()
    return gemma4_variant(
        shares_kv=config.attention_k_eq_v, logit_cap=config.final_logit_softcapping
    )


def _own_heads(config: Any) -> tuple[int, int | None]:
    """Read head_dim and the number of KV heads of the target's layers with full attention."""
    layer = config.per_layer_config[full_layers(config)[-1]]
    head_dim: int | None = getattr(layer, "head_dim", None)
    kv_heads: int | None = getattr(layer, "num_key_value_heads", None)
    return head_dim or layer.hidden_size // layer.num_attention_heads, kv_heads


def _layer(design: DesignConfig, config: Any, *, is_partial: bool) -> LayerConfig:
    rope = _rope(config)
    theta = rope.get("rope_theta") or getattr(config, "rope_theta", None) or _ROPE_THETA
    fraction = rope.get("partial_rotary_factor", 1.0) if is_partial else 1.0
    return LayerConfig(
        rope_theta=float(design.rope_theta or theta), rotary_fraction=float(fraction)
    )


def choose_taps(design: DesignConfig, *, num_layers: int) -> tuple[int, ...]:
    """Return the configured taps, or num_taps from layer 1 to the third last, evenly spaced.

    Raises LoadError for invalid taps, or a target with too few layers.
    """
    count, last = design.num_taps, num_layers - 3
    if design.tap_layers is not None:
        taps = design.tap_layers
    elif count == 1:
        taps = (min(num_layers // 2, num_layers - 2),)
    else:
        taps = tuple(round(1 + i * (last - 1) / (count - 1)) for i in range(count))
    try:
        check_taps("tap_layers", taps, num_layers=num_layers)
    except DraftLoadError as error:
        raise LoadError(
            f"design.num_taps: {count} taps do not fit a target of {num_layers} layers: {error}"
            if design.tap_layers is None
            else f"design.tap_layers: {error}"
        ) from error
    return taps


def unused_token_id(sequences: Iterable[tuple[int, ...]], *, vocab_size: int) -> int:
    """Return the last unused id, for the mask. Raises LoadError if all ids are used."""
    used = set().union(*sequences)
    for token_id in reversed(range(vocab_size)):
        if token_id not in used:
            return token_id
    raise LoadError(
        "design.mask_token_id: every token occurs in the training texts; accepted: an id to be "
        f"used as the mask, 0 to {vocab_size - 1}"
    )


def frequent_token_ids(
    answers: Iterable[tuple[int, ...]], *, size: int, always: Iterable[int], vocab_size: int
) -> Int[Tensor, "Vd"]:
    """Return the `size` most frequent token ids of answers, including `always`, ascending.

    Raises LoadError if the vocabulary is smaller, or `always` is larger.
    """
    required = sorted(set(always))
    if not len(required) <= size <= vocab_size:
        raise LoadError(
            f"design.draft_vocab_size: found {size}; accepted: {max(1, len(required))} to "
            f"{vocab_size}"
        )
    counts = Counter(chain.from_iterable(answers))
    by_count = sorted(range(vocab_size), key=lambda token_id: -counts[token_id])
    chosen = dict.fromkeys([*required, *by_count])
    return torch.tensor(sorted(islice(chosen, size)))


def _rope(config: Any) -> Mapping[str, Any]:
    """Return the RoPE parameters of layers with full attention."""
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    return rope.get("full_attention") or rope
