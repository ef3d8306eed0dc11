"""Reads configs of vllm-project/speculators: the draft's fields, with a nested decoder config."""

import logging
from collections.abc import Mapping

from draft.checkpoint.backbone_fields import check_fits
from draft.checkpoint.decoder_variants import read_qwen3
from draft.checkpoint.draft_fields import read_draft
from draft.checkpoint.fields import Fields
from draft.config import DSparkConfig, TargetFacts, check_taps
from draft.errors import DraftLoadError

_LAYERS = "transformer_layer_config"
_TAPS = "aux_hidden_state_layer_ids"

# Defaults of the format: a file leaves out fields that have these values.
_DRAFT_DEFAULTS: Mapping[str, object] = {
    "block_size": 8,
    "draft_vocab_size": 32_000,
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "confidence_head_with_markov": True,
}
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
    fields = Fields(values, defaults=_DRAFT_DEFAULTS)
    fields.choice("speculators_model_type", ["dspark"])
    check_fits(fields, "target_hidden_size", target.hidden_size, found=target.hidden_size)
    _warn_of_absent_convention(fields)
    backbone = _layer_fields(fields)
    causal_windows = not fields.flag("sliding_window_non_causal", default=False)
    return read_draft(
        fields,
        backbone,
        read_qwen3(backbone, causal_windows=causal_windows),
        target=target,
        tap_layers=_taps(fields, target),
        ties_embeddings=False,
    )


def _layer_fields(fields: Fields) -> Fields:
    """Return the nested decoder config, completed with the defaults of its class."""
    found = fields.find(_LAYERS)
    if not isinstance(found, Mapping):
        raise DraftLoadError(_LAYERS, found=found, accepted="an object, a qwen3 config")
    given = {name for name, value in found.items() if value is not None}
    rope = {} if given & {"rope_theta", "rope_parameters"} else {"rope_theta": _DEFAULT_ROPE_THETA}
    layers = Fields(found, within=_LAYERS, defaults={**_LAYER_DEFAULTS, **rope})
    layers.choice("model_type", ["qwen3"])
    return layers


def _warn_of_absent_convention(fields: Fields) -> None:
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
