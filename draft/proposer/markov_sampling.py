"""Samples a block's tokens left to right from base logits plus the Markov head's bias."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft.network.draft_vocabulary import DraftVocabulary
from draft.network.heads import MarkovHead
from draft.proposer.block import BlockSampling
from draft.proposer.inverse_cdf import inverse_cdf
from draft.proposer.masking import MaskedChain


def draft_chain(
    head: MarkovHead | None,
    hidden: Float[Tensor, "B K E"],
    base_logits: Float[Tensor, "B K Vd"],
    anchor_ids: Int[Tensor, "B"],
    sampling: BlockSampling | None,
    *,
    state: Float[Tensor, "B r"] | None = None,
    vocabulary: DraftVocabulary | None = None,
    mask: MaskedChain | None = None,
) -> tuple[Int[Tensor, "B K"], Float[Tensor, "R K Vd"] | None]:
    """Sample draft ids [B, K] and return q [R, K, Vd] of the rows in `sampling`.

    Token ids are target ids; logits and q are over draft ids, which are the same if `vocabulary`
    is None. Rows that are not in `sampling` take the argmax. Masked tokens have logit minus
    infinity. `state` is the Markov head's state before the first slot.

    q is softmax(logits / temperature) in float32: the tensor that the tokens were sampled from.
    Only q outlives a slot; corrected logits of the whole block never exist at once.
    """
    if head is None and sampling is None and mask is None:
        return _target_ids(base_logits.argmax(dim=-1), vocabulary), None
    draw = None if sampling is None else _Draw(sampling, base_logits)
    previous = anchor_ids
    chain: list[Tensor] = []
    for k in range(base_logits.shape[1]):
        logits = base_logits[:, k]
        if mask is not None:
            mask.advance(k, previous)
            best = mask.best_of_few(logits, head, hidden[:, k], previous) if draw is None else None
            if best is not None:
                previous = best
                chain.append(best)
                continue
        if head is not None:
            bias, state = head.bias(previous, hidden[:, k], state)
            logits = logits + bias
        if mask is not None:
            logits = mask.mask_logits(logits)
        chosen = logits.argmax(dim=-1)
        if draw is not None:
            chosen = draw.slot(k, logits, chosen)
        previous = _target_ids(chosen, vocabulary)
        if mask is not None:
            previous = mask.force(previous)
        chain.append(previous)
    return torch.stack(chain, dim=1), None if draw is None else draw.probs


def _target_ids(
    draft_ids: Int[Tensor, "*B"], vocabulary: DraftVocabulary | None
) -> Int[Tensor, "*B"]:
    return draft_ids if vocabulary is None else vocabulary.to_target(draft_ids)


class _Draw:
    """Draws tokens for the rows in `sampling` and keeps their distributions q."""

    def __init__(self, sampling: BlockSampling, base_logits: Float[Tensor, "B K Vd"]) -> None:
        self._rows = sampling.rows
        self._temperatures = sampling.temperatures.float()[:, None]  # (R, 1)
        self._uniforms = sampling.uniforms
        _, block_size, num_outputs = base_logits.shape
        self._probs = base_logits.new_empty(
            (block_size, self._rows.shape[0], num_outputs), dtype=torch.float32
        )

    @property
    def probs(self) -> Float[Tensor, "R K Vd"]:
        return self._probs.transpose(0, 1)

    def slot(
        self, k: int, logits: Float[Tensor, "B Vd"], greedy_ids: Int[Tensor, "B"]
    ) -> Int[Tensor, "B"]:
        """Replace the drawing rows of greedy_ids by tokens drawn from slot k's logits."""
        scaled = logits.index_select(0, self._rows).float() / self._temperatures
        torch.softmax(scaled, dim=-1, out=self._probs[k])
        drawn = inverse_cdf(self._probs[k], self._uniforms[:, k])
        return greedy_ids.index_copy(0, self._rows, drawn)
