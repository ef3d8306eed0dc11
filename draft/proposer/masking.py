"""Applies a token mask (a grammar) to Markov sampling: masked tokens have probability 0 in q."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draft.network.draft_vocabulary import DraftVocabulary
from draft.network.heads import MarkovHead
from draft.proposer.block import ChainMask

_NOT_FORCED = -1
_FEW = 1024  # up to so many allowed tokens, Markov biases are computed for those tokens only


class MaskedChain:
    """Applies a ChainMask to one batch of blocks, slot by slot.

    A row that allows only one token takes it, even if it is not in the draft vocabulary. If a row
    allows several tokens and none is in the draft vocabulary, its logits stay unmasked: the target
    rejects the token, against the q it was sampled from.
    """

    def __init__(self, mask: ChainMask, vocabulary: DraftVocabulary | None) -> None:
        """vocabulary: None if the draft predicts the target's whole vocabulary."""
        self._mask = mask
        self._vocabulary = vocabulary
        self._forced: list[Int[Tensor, " M"]] = []  # by slot, target ids; _NOT_FORCED where not
        self._draft_ids: Int[Tensor, " V"] | None = None  # by target id; made when first needed

    def advance(self, k: int, previous_ids: Int[Tensor, "B"]) -> None:
        """Move to slot k; previous_ids are the tokens of slot k - 1."""
        self._mask.advance(k, previous_ids[self._mask.rows])

    def best_of_few(
        self,
        logits: Float[Tensor, "B Vd"],
        head: MarkovHead | None,
        hidden: Float[Tensor, "B E"],
        previous_ids: Int[Tensor, "B"],
    ) -> Int[Tensor, "B"] | None:
        """Select the best allowed token of each row, in target ids, if all rows allow only few.

        Computes the Markov bias of the allowed tokens only and adds it to the base logits.
        Returns None if a row allows more, or if the head cannot compute a partial bias.
        """
        if head is not None and not head.supports_partial_bias:
            return None
        few = self._mask.few(_FEW) if len(self._mask.rows) == len(logits) else None
        if few is None:
            return None
        chosen = torch.empty_like(previous_ids)
        for b, ids in zip(self._mask.rows.tolist(), few, strict=True):
            tokens = torch.tensor(ids, device=logits.device)
            draft_ids = self._to_draft(tokens)
            if self._vocabulary is not None:  # a selection by values makes the host wait
                tokens, draft_ids = tokens[draft_ids >= 0], draft_ids[draft_ids >= 0]
            if len(ids) == 1 or not len(draft_ids):
                chosen[b] = ids[0]
                continue
            scores = logits[b, draft_ids]
            if head is not None:
                scores = scores + head.partial_bias(draft_ids, previous_ids[b], hidden[b])
            chosen[b] = tokens.take(scores.argmax())  # an index of one number would be read
        return chosen

    def _to_draft(self, tokens: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        if self._vocabulary is None:
            return tokens
        if self._draft_ids is None:
            size = int(self._vocabulary.target_ids.max()) + 1
            every = torch.arange(size, device=tokens.device)
            self._draft_ids = self._vocabulary.from_target(every, vocab_size=size)
        inside = tokens < len(self._draft_ids)
        return self._draft_ids[tokens.where(inside, 0)].where(inside, -1)

    def mask_logits(self, logits: Float[Tensor, "B Vd"]) -> Float[Tensor, "B Vd"]:
        """Return this slot's logits with minus infinity for masked tokens.

        Leaves its argument unchanged, which may be a kernel's buffer.
        """
        rows = self._mask.rows
        allowed = self._mask.allowed()
        if self._vocabulary is not None:
            self._forced.append(_only_allowed(allowed))
            allowed = allowed[:, self._vocabulary.target_ids]
        has_any = allowed.any(dim=1, keepdim=True)
        masked = logits[rows].masked_fill(~allowed & has_any, float("-inf"))
        return logits.index_copy(0, rows, masked)

    def force(self, target_ids: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """Replace the slot's tokens in rows that allow a single token."""
        if self._vocabulary is None:  # the only allowed token is already the argmax or the draw
            return target_ids
        rows, forced = self._mask.rows, self._forced[-1]
        return target_ids.index_copy(0, rows, forced.where(forced >= 0, target_ids[rows]))

    def force_probs(
        self, draft_probs: Float[Tensor, "R K V"], drawing: Int[Tensor, "R"]
    ) -> Float[Tensor, "R K V"]:
        """Set q, over target ids, to one-hot wherever a token was forced. Changes it in place.

        drawing: the batch rows of draft_probs.
        """
        places = {row: r for r, row in enumerate(drawing.tolist())}
        for k, forced in enumerate(self._forced):
            for row, token_id in zip(self._mask.rows.tolist(), forced.tolist(), strict=True):
                if token_id != _NOT_FORCED and row in places:
                    draft_probs[places[row], k] = 0.0
                    draft_probs[places[row], k, token_id] = 1.0
        return draft_probs


def satisfies_mask(
    mask: ChainMask, draft_ids: Int[Tensor, "B K"], anchor_ids: Int[Tensor, "B"]
) -> bool:
    """Check whether a greedy block that was sampled without the mask satisfies it.

    If so, its tokens are also the argmax of the allowed tokens. Advances the mask from slot 0, and
    waits for the device once for the whole block.
    """
    rows = mask.rows
    chains = torch.cat([anchor_ids[rows, None], draft_ids[rows]], dim=1).cpu()  # (M, K + 1)
    previous = chains[:, 0]
    for k in range(draft_ids.shape[1]):
        mask.advance(k, previous)
        previous = chains[:, k + 1]
        if not mask.allows(previous):
            return False
    return True


def _only_allowed(allowed: Bool[Tensor, "M V"]) -> Int[Tensor, "M"]:
    """Return each row's only allowed token; _NOT_FORCED if the row allows several."""
    return allowed.byte().argmax(dim=1).where(allowed.sum(dim=1) == 1, _NOT_FORCED)
