"""Reads configs of vllm-project/speculators: the draft's fields, with a nested decoder config."""

import logging
from collections.abc import Mapping

from draft.checkpoint.backbone_fields import check_fits, read_heads, read_layers
from draft.checkpoint.draft_fields import (
    read_block,
    read_confidence,
    read_draft_vocab_size,
    read_markov,
    read_mask_token_id,
)
from draft.checkpoint.fields import Fields
from draft.config import DSparkConfig, TargetFacts, check_taps
from draft.errors import DraftLoadError

_LAYERS = "transformer_layer_config"
_TAPS = "aux_hidden_state_layer_ids"

# Defaults of the format: a file leaves out fields that have these values.
_DEFAULT_BLOCK_SIZE = 8
_DEFAULT_VOCAB_SIZE = 32_000
_DEFAULT_MARKOV_RANK = 256
_LAYER_DEFAULTS: Mapping[str, object] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
_DEFAULT_ROPE_THETA = 10_000.0

logger = logging.getLogger(__name__)


def read_speculators(values: Mapping[str, object], *, target: TargetFacts) -> DSparkConfig:
    """Convert a speculators config of type dspark to a DSparkConfig.

    Its taps are indices of transformers' hidden_states: 0 is the embedding, i + 1 is layer i.

    Raises DraftLoadError for a field that is missing, unknown, or does not fit the target.
    """
    fields = Fields(values)
    fields.choice("speculators_model_type", ["dspark"])
    layers = _layer_fields(fields)
    check_fits(layers, "hidden_size", target.hidden_size)
    check_fits(layers, "vocab_size", target.vocab_size)
    _check_target_hidden_size(fields, target)
    _note_absent_convention(fields)
    samples, block_size = read_block(fields, default_size=_DEFAULT_BLOCK_SIZE)
    num_heads, num_kv_heads, head_dim = read_heads(layers)
    kind, rank = read_markov(fields, default_rank=_DEFAULT_MARKOV_RANK, default_kind="vanilla")
    has_confidence, with_markov = read_confidence(
        fields, has_markov=kind is not None, default_with_markov=True
    )
    non_causal = fields.flag("sliding_window_non_causal", default=False)
    return DSparkConfig(
        hidden_size=target.hidden_size,
        intermediate_size=layers.integer("intermediate_size", minimum=1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=layers.positive_number("rms_norm_eps"),
        attention_bias=layers.flag("attention_bias", default=False),
        layers=read_layers(layers, causal_windows=not non_causal),
        block_size=block_size,
        mask_token_id=read_mask_token_id(fields, vocab_size=target.vocab_size),
        tap_layers=_taps(fields, target),
        markov_kind=kind,
        markov_rank=rank,
        has_confidence_head=has_confidence,
        confidence_with_markov=with_markov,
        sample_from_anchor=samples,
        draft_vocab_size=read_draft_vocab_size(
            fields, vocab_size=target.vocab_size, default=_DEFAULT_VOCAB_SIZE
        ),
    )


def _layer_fields(fields: Fields) -> Fields:
    """Return the nested decoder config, completed with the defaults of its class."""
    found = fields.find(_LAYERS)
    if not isinstance(found, Mapping):
        raise DraftLoadError(_LAYERS, found=found, accepted="an object, a qwen3 config")
    given = {name: value for name, value in found.items() if value is not None}
    if not {"rope_theta", "rope_parameters"} & given.keys():
        given["rope_theta"] = _DEFAULT_ROPE_THETA
    layers = Fields({**_LAYER_DEFAULTS, **given}, within=_LAYERS)
    layers.choice("model_type", ["qwen3"])
    layers.choice("hidden_act", ["silu"], default="silu")
    return layers


def _check_target_hidden_size(fields: Fields, target: TargetFacts) -> None:
    check_fits(fields, "target_hidden_size", target.hidden_size, found=target.hidden_size)


def _note_absent_convention(fields: Fields) -> None:
    if fields.find("sample_from_anchor") is None:
        logger.warning(
            "draft sample_from_anchor: found nothing, using the format's default, true; drafts "
            "exported before the field existed were trained with false: if the accept length is "
            'about 1, add "sample_from_anchor": false to config.json'
        )


def _taps(fields: Fields, target: TargetFacts) -> tuple[int, ...]:
    stored = fields.integers(_TAPS)
    try:
        taps = tuple(tap - 1 for tap in stored)
        check_taps(_TAPS, taps, num_layers=target.num_layers)
    except DraftLoadError:
        raise DraftLoadError(
            _TAPS,
            found=list(stored),
            accepted=f"strictly increasing from 0 (embedding) to {target.num_layers - 1}: "
            "indices of hidden states, where i + 1 is layer i",
        ) from None
    return taps
