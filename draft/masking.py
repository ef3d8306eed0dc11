"""A block whose tokens must keep a rule: what is ruled out is out of q as well."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draft.block import ChainMask
from draft.network.heads import MarkovHead
from draft.vocabulary import DraftVocabulary

_NOT_FORCED = -1
_FEW = 1024  # words of a slot whose biases are computed one by one


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
        self._forced: list[Int[Tensor, " M"]] = []  # by slot, target ids; _NOT_FORCED where not
        self._words: Int[Tensor, " V"] | None = None  # of the vocabulary, once they are needed

    def stand(self, k: int, previous_ids: Int[Tensor, "B"]) -> None:
        """Go to slot k; previous_ids are those of slot k - 1."""
        self._mask.stand(k, previous_ids[self._mask.rows])

    def of_few(
        self,
        logits: Float[Tensor, "B Vd"],
        head: MarkovHead | None,
        hidden: Float[Tensor, "B E"],
        previous_ids: Int[Tensor, "B"],
    ) -> Int[Tensor, "B"] | None:
        """The best of what this slot allows, in target ids, where it allows few tokens to all rows.

        Only their biases are computed, and they are added to these base logits. None where a row
        may say more, or the head cannot tell the biases apart: then it is the caller's to do.
        """
        if head is not None and not head.tells_words_apart:
            return None
        few = self._mask.few(_FEW) if len(self._mask.rows) == len(logits) else None
        if few is None:
            return None
        said = torch.empty_like(previous_ids)
        for b, ids in zip(self._mask.rows.tolist(), few, strict=True):
            tokens = torch.tensor(ids, device=logits.device)
            words = self._words_of(tokens)
            tokens, words = tokens[words >= 0], words[words >= 0]
            if len(ids) == 1 or not len(words):
                said[b] = ids[0]
                continue
            scores = logits[b, words]
            if head is not None:
                scores = scores + head.bias_of(words, previous_ids[b], hidden[b])
            said[b] = tokens[scores.argmax()]
        return said

    def _words_of(self, tokens: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        if self._vocabulary is None:
            return tokens
        if self._words is None:
            size = int(self._vocabulary.target_ids.max()) + 1
            every = torch.arange(size, device=tokens.device)
            self._words = self._vocabulary.from_target(every, vocab_size=size)
        inside = tokens < len(self._words)
        return self._words[tokens.where(inside, 0)].where(inside, -1)

    def rule(self, logits: Float[Tensor, "B Vd"]) -> Float[Tensor, "B Vd"]:
        """This slot's logits, minus infinity where a row's word is ruled out.

        They may be a kernel's buffer, and are left as they are.
        """
        rows = self._mask.rows
        words = self._mask.allowed()
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


def keeps_to(mask: ChainMask, draft_ids: Int[Tensor, "B K"], anchor_ids: Int[Tensor, "B"]) -> bool:
    """Whether a block that takes the argmax of all tokens keeps to the mask anyway.

    Then it takes the argmax of the allowed ones too. Otherwise the mask stands at its first slot
    again as soon as somebody puts it there. A device is waited for once, not in every slot.
    """
    rows = mask.rows
    said = torch.cat([anchor_ids[rows, None], draft_ids[rows]], dim=1).cpu()  # (M, K + 1)
    previous = said[:, 0]
    for k in range(draft_ids.shape[1]):
        mask.stand(k, previous)
        previous = said[:, k + 1]
        if not mask.allows(previous):
            return False
    return True


def _only_one(words: Bool[Tensor, "M V"]) -> Int[Tensor, "M"]:
    """The token of each row that allows no other; _NOT_FORCED of the rest."""
    return words.byte().argmax(dim=1).where(words.sum(dim=1) == 1, _NOT_FORCED)
