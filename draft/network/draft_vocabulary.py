"""Maps a reduced draft vocabulary to the target's vocabulary (d2t and t2d)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draft.errors import DraftLoadError

NO_DRAFT_ID = -1


class DraftVocabulary(nn.Module):
    """Converts between draft ids and target ids.

    lm_head and Markov W2 have one row per draft id; embedding and Markov W1 one per target id.
    A DraftBlock contains target ids only.
    """

    target_ids: Int[Tensor, "Vd"]

    def __init__(self, *, size: int) -> None:
        super().__init__()
        self.register_buffer("target_ids", torch.arange(size), persistent=False)

    def to_target(self, draft_ids: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        return self.target_ids[draft_ids]

    def from_target(self, target_ids: Int[Tensor, "*B"], *, vocab_size: int) -> Int[Tensor, "*B"]:
        """Return the draft ids of these tokens; NO_DRAFT_ID outside the draft vocabulary."""
        draft_ids = torch.full((vocab_size,), NO_DRAFT_ID, device=self.target_ids.device)
        draft_ids[self.target_ids] = torch.arange(len(self.target_ids), device=draft_ids.device)
        return draft_ids[target_ids]

    def scatter(self, probs: Float[Tensor, "*B Vd"], *, vocab_size: int) -> Float[Tensor, "*B V"]:
        """Scatter a distribution to the target's vocabulary: 0 outside the draft vocabulary."""
        whole = probs.new_zeros((*probs.shape[:-1], vocab_size))
        return whole.index_copy_(-1, self.target_ids, probs)


def target_ids_of(
    d2t: Int[Tensor, "Vd"], t2d: Tensor | None, *, vocab_size: int
) -> Int[Tensor, "Vd"]:
    """Compute the target id of each draft id from a checkpoint's d2t and optional t2d.

    d2t holds offsets: target id = draft id + d2t[draft id]. t2d is a mask over the target's
    vocabulary, whose set entries are the draft vocabulary in ascending order.

    Raises DraftLoadError if a map is out of range, repeats an id, or contradicts the other.
    """
    target_ids = torch.arange(len(d2t)) + d2t.long()
    outside = (target_ids < 0) | (target_ids >= vocab_size)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise DraftLoadError(
            f"d2t[{at}]",
            found=f"{int(d2t[at])}, which is target id {int(target_ids[at])}",
            accepted=f"an offset to a target id from 0 to {vocab_size - 1}",
        )
    if torch.bincount(target_ids).max() > 1:
        raise DraftLoadError("d2t", found="a target id twice", accepted="each target id once")
    if t2d is not None and not torch.equal(t2d.nonzero()[:, 0], target_ids):
        raise DraftLoadError(
            "t2d",
            found=f"{int(t2d.sum())} tokens that are not those of d2t in ascending order",
            accepted="a mask of exactly the target ids of d2t",
        )
    return target_ids
