"""Reads DeepSpec's config.json: the target's config with the draft's fields added."""

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

_ARCHITECTURE = "Qwen3DSparkModel"
_UNSUPPORTED = {
    "Gemma4DSparkModel": "values are normed keys without a projection of their own, embeddings "
    "are scaled and logits capped; none of this is implemented",
}


def read_deepspec(fields: Fields, *, target: TargetFacts) -> DSparkConfig:
    """Convert a DeepSpec config to a DSparkConfig.

    Raises DraftLoadError for a field that is missing, unknown, or does not fit the target.
    """
    _check_architecture(fields)
    check_fits(fields, "hidden_size", target.hidden_size)
    check_fits(fields, "vocab_size", target.vocab_size)
    check_fits(fields, "num_target_layers", target.num_layers, found=target.num_layers)
    fields.choice("hidden_act", ["silu"], default="silu")
    samples, block_size = read_block(fields)
    num_heads, num_kv_heads, head_dim = read_heads(fields)
    kind, rank = read_markov(fields)
    has_confidence, with_markov = read_confidence(fields, has_markov=kind is not None)
    return DSparkConfig(
        hidden_size=target.hidden_size,
        intermediate_size=fields.integer("intermediate_size", minimum=1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=fields.positive_number("rms_norm_eps"),
        attention_bias=fields.flag("attention_bias", default=False),
        layers=read_layers(fields),
        block_size=block_size,
        mask_token_id=read_mask_token_id(fields, vocab_size=target.vocab_size),
        tap_layers=_taps(fields, target),
        markov_kind=kind,
        markov_rank=rank,
        has_confidence_head=has_confidence,
        confidence_with_markov=with_markov,
        ties_embeddings=fields.flag("tie_word_embeddings", default=False),
        sample_from_anchor=samples,
        draft_vocab_size=read_draft_vocab_size(fields, vocab_size=target.vocab_size),
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


def _taps(fields: Fields, target: TargetFacts) -> tuple[int, ...]:
    taps = fields.integers("target_layer_ids")
    check_taps("target_layer_ids", taps, num_layers=target.num_layers)
    return taps
