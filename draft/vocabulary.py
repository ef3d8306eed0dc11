"""A reduced draft vocabulary: the target's tokens that a draft can say at all."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draft.errors import DraftLoadError

UNSAYABLE = -1


class DraftVocabulary(nn.Module):
    """Draft ids and the target ids that they stand for.

    Head and W2 have a row for each draft id; embedding and W1 one for each target id. What
    leaves the draft is in target ids.
    """

    target_ids: Int[Tensor, "Vd"]

    def __init__(self, *, size: int) -> None:
        super().__init__()
        self.register_buffer("target_ids", torch.arange(size), persistent=False)

    def to_target(self, draft_ids: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        return self.target_ids[draft_ids]

    def from_target(self, target_ids: Int[Tensor, "*B"], *, vocab_size: int) -> Int[Tensor, "*B"]:
        """Draft ids of these tokens; UNSAYABLE for those that the draft has no word for."""
        words = torch.full((vocab_size,), UNSAYABLE, device=self.target_ids.device)
        words[self.target_ids] = torch.arange(len(self.target_ids), device=words.device)
        return words[target_ids]

    def spread(self, probs: Float[Tensor, "*B Vd"], *, vocab_size: int) -> Float[Tensor, "*B V"]:
        """The same distribution over the whole vocabulary: zero where the draft has no word."""
        whole = probs.new_zeros((*probs.shape[:-1], vocab_size))
        return whole.index_copy_(-1, self.target_ids, probs)


def target_ids_of(
    d2t: Int[Tensor, "Vd"], t2d: Tensor | None, *, vocab_size: int
) -> Int[Tensor, "Vd"]:
    """What the two maps of a checkpoint say, after checking that they say the same.

    d2t holds offsets (target id = draft id + d2t[draft id]); t2d, which may be left out, is a
    mask of the target's vocabulary, whose set entries are the draft ids in ascending order.

    Raises DraftLoadError.
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
