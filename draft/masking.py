"""A block whose tokens must keep a rule: what is ruled out is out of q as well."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from draft.block import ChainMask
from draft.vocabulary import DraftVocabulary

_NOT_FORCED = -1


class MaskedChain:
    """One block's way along a ChainMask.

    Where a row may say one token only it says that one, also if the draft has no word for it.
    Where it may say several, and the draft has a word for none of them, nothing is ruled out: its
    token will be rejected, by a q that it was truly drawn from.
    """

    def __init__(self, mask: ChainMask, vocabulary: DraftVocabulary | None) -> None:
        """vocabulary: of a draft that has words for some tokens only."""
        self._mask = mask
        self._vocabulary = vocabulary
        self._forced: list[Int[Tensor, M]] = []  # by slot, target ids; _NOT_FORCED where not

    def slot(
        self, k: int, logits: Float[Tensor, "B Vd"], previous_ids: Int[Tensor, "B"]
    ) -> Float[Tensor, "B Vd"]:
        """Slot k's logits, minus infinity where a row's word is ruled out; previous_ids: k - 1's.

        The logits may be a kernel's buffer: they are left as they are.
        """
        rows = self._mask.rows
        words = self._mask.allowed(k, previous_ids[rows])
        if self._vocabulary is not None:
            self._forced.append(_only_one(words))
            words = words[:, self._vocabulary.target_ids]
        has_any = words.any(dim=1, keepdim=True)
        masked = logits[rows].masked_fill(~words & has_any, float("-inf"))
        return logits.index_copy(0, rows, masked)

    def said(self, target_ids: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """The tokens of the slot at hand, forced ones in their places."""
        if self._vocabulary is None:  # the only token that is left is the argmax, and is drawn
            return target_ids
        rows, forced = self._mask.rows, self._forced[-1]
        return target_ids.index_copy(0, rows, forced.where(forced >= 0, target_ids[rows]))

    def with_forced(
        self, draft_probs: Float[Tensor, "R K V"], drawing: Int[Tensor, "R"]
    ) -> Float[Tensor, "R K V"]:
        """q over the target's ids, certain of every forced token; drawing: R's rows of the batch.

        Changed in place where there are forced tokens.
        """
        places = {row: r for r, row in enumerate(drawing.tolist())}
        for k, forced in enumerate(self._forced):
            for row, token_id in zip(self._mask.rows.tolist(), forced.tolist(), strict=True):
                if token_id != _NOT_FORCED and row in places:
                    draft_probs[places[row], k] = 0.0
                    draft_probs[places[row], k, token_id] = 1.0
        return draft_probs


def _only_one(words: Bool[Tensor, "M V"]) -> Int[Tensor, "M"]:
    """The token of each row that allows no other; _NOT_FORCED of the rest."""
    return words.byte().argmax(dim=1).where(words.sum(dim=1) == 1, _NOT_FORCED)
