"""Reads a config's draft fields: block, Markov head, confidence head, draft vocabulary.

Used by both checkpoint formats.
"""

from typing import cast

from draft.checkpoint.fields import Fields
from draft.config import MarkovKind
from draft.errors import DraftLoadError

_MARKOV_KINDS = ("vanilla", "gated", "rnn")


def read_mask_token_id(fields: Fields, *, vocab_size: int) -> int:
    mask_token_id = fields.integer("mask_token_id", minimum=0)
    if mask_token_id >= vocab_size:
        wanted = f"0 to {vocab_size - 1}"
        raise DraftLoadError(fields.label("mask_token_id"), found=mask_token_id, accepted=wanted)
    return mask_token_id


def read_block(fields: Fields, *, default_size: int | None = None) -> tuple[bool, int]:
    """Read sample_from_anchor and the number of draft tokens.

    In both formats block_size counts slots. Without sample_from_anchor the anchor's slot predicts
    nothing, and a block has one draft token less.
    """
    samples = fields.flag("sample_from_anchor", default=True)
    num_slots = fields.integer("block_size", minimum=1 if samples else 2, default=default_size)
    return samples, num_slots if samples else num_slots - 1


def read_draft_vocab_size(
    fields: Fields, *, vocab_size: int, default: int | None = None
) -> int | None:
    """Read the size of the draft vocabulary; None if it is the target's whole vocabulary."""
    size = fields.integer("draft_vocab_size", minimum=1, default=default or vocab_size)
    if size > vocab_size:
        wanted = f"1 to {vocab_size}, which is the target's"
        raise DraftLoadError(fields.label("draft_vocab_size"), found=size, accepted=wanted)
    return size if size < vocab_size else None


def read_markov(
    fields: Fields, *, default_rank: int = 0, default_kind: MarkovKind | None = None
) -> tuple[MarkovKind | None, int]:
    """Read kind and rank of the Markov head; None and 0 without one."""
    rank = fields.integer("markov_rank", minimum=0, default=default_rank)
    if rank == 0:
        return None, 0
    kind = fields.choice("markov_head_type", _MARKOV_KINDS, default=default_kind)
    return cast(MarkovKind, kind), rank


def read_confidence(
    fields: Fields, *, has_markov: bool, default_with_markov: bool | None = None
) -> tuple[bool, bool]:
    """Read whether there is a confidence head, and whether it reads the Markov head's W1.

    An absent switch means on, as in other engines; the loader then requires the tensors.
    """
    if not fields.flag("enable_confidence_head", default=True):
        return False, False
    with_markov = fields.flag("confidence_head_with_markov", default=default_with_markov)
    if with_markov and not has_markov:
        wanted = "false when markov_rank is 0"
        raise DraftLoadError(
            fields.label("confidence_head_with_markov"), found=True, accepted=wanted
        )
    return True, with_markov
