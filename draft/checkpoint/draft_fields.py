"""Builds a DSparkConfig from config fields: block, Markov head, confidence head, vocabulary.

Used by both checkpoint formats.
"""

from typing import cast

from draft.checkpoint.backbone_fields import check_fits
from draft.checkpoint.decoder_variants import Decoder
from draft.checkpoint.fields import Fields
from draft.config import DSparkConfig, MarkovKind, TargetFacts
from draft.errors import DraftLoadError

_MARKOV_KINDS = ("vanilla", "gated", "rnn")


def read_draft(
    fields: Fields,
    backbone: Fields,
    decoder: Decoder,
    *,
    target: TargetFacts,
    tap_layers: tuple[int, ...],
    ties_embeddings: bool,
) -> DSparkConfig:
    """Read the draft's fields. backbone: the fields that `decoder` was read from.

    Raises DraftLoadError for a field that is missing, unknown, or does not fit the target.
    """
    check_fits(backbone, "hidden_size", target.hidden_size)
    check_fits(backbone, "vocab_size", target.vocab_size)
    samples_anchor, block_size = _read_block(fields)
    kind, rank = _read_markov(fields)
    has_confidence, with_markov = _read_confidence(fields, has_markov=kind is not None)
    return DSparkConfig(
        hidden_size=target.hidden_size,
        intermediate_size=backbone.integer("intermediate_size", minimum=1),
        num_heads=decoder.heads.num_heads,
        num_kv_heads=decoder.heads.num_kv_heads,
        head_dim=decoder.heads.head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=backbone.positive_number("rms_norm_eps"),
        attention_bias=backbone.flag("attention_bias", default=False),
        layers=decoder.layers,
        variant=decoder.variant,
        block_size=block_size,
        mask_token_id=_read_mask_token_id(fields, vocab_size=target.vocab_size),
        tap_layers=tap_layers,
        markov_kind=kind,
        markov_rank=rank,
        has_confidence_head=has_confidence,
        confidence_with_markov=with_markov,
        ties_embeddings=ties_embeddings,
        sample_from_anchor=samples_anchor,
        draft_vocab_size=_read_draft_vocab_size(fields, vocab_size=target.vocab_size),
    )


def _read_mask_token_id(fields: Fields, *, vocab_size: int) -> int:
    mask_token_id = fields.integer("mask_token_id", minimum=0)
    if mask_token_id >= vocab_size:
        wanted = f"0 to {vocab_size - 1}"
        raise DraftLoadError(fields.label("mask_token_id"), found=mask_token_id, accepted=wanted)
    return mask_token_id


def _read_block(fields: Fields) -> tuple[bool, int]:
    """Read sample_from_anchor and the number of draft tokens.

    In both formats block_size counts slots. Without sample_from_anchor the anchor's slot predicts
    nothing, and a block has one draft token less.
    """
    samples_anchor = fields.flag("sample_from_anchor", default=True)
    num_slots = fields.integer("block_size", minimum=1 if samples_anchor else 2)
    return samples_anchor, num_slots if samples_anchor else num_slots - 1


def _read_draft_vocab_size(fields: Fields, *, vocab_size: int) -> int | None:
    """Read the size of the draft vocabulary; None if it is the target's whole vocabulary."""
    size = fields.integer("draft_vocab_size", minimum=1, default=vocab_size)
    if size > vocab_size:
        wanted = f"1 to {vocab_size}, which is the target's"
        raise DraftLoadError(fields.label("draft_vocab_size"), found=size, accepted=wanted)
    return size if size < vocab_size else None


def _read_markov(fields: Fields) -> tuple[MarkovKind | None, int]:
    """Read kind and rank of the Markov head; None and 0 without one."""
    rank = fields.integer("markov_rank", minimum=0, default=0)
    if rank == 0:
        return None, 0
    return cast(MarkovKind, fields.choice("markov_head_type", _MARKOV_KINDS)), rank


def _read_confidence(fields: Fields, *, has_markov: bool) -> tuple[bool, bool]:
    """Read whether there is a confidence head, and whether it reads the Markov head's W1.

    An absent switch means on, as in other engines; the loader then requires the tensors.
    """
    if not fields.flag("enable_confidence_head", default=True):
        return False, False
    with_markov = fields.flag("confidence_head_with_markov")
    if with_markov and not has_markov:
        wanted = "false when markov_rank is 0"
        raise DraftLoadError(
            fields.label("confidence_head_with_markov"), found=True, accepted=wanted
        )
    return True, with_markov
