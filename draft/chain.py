"""From a block's base logits to its tokens, left to right."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft.block import BlockSampling
from draft.masking import MaskedChain
from draft.network.heads import MarkovHead
from draft.sampling import inverse_cdf
from draft.vocabulary import DraftVocabulary


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
    """Each slot's token, given the one before it; and the distributions of the rows that draw.

    Tokens are the target's ids; logits and distributions are over draft ids, which are the same
    where `vocabulary` is None. state is the Markov head's before the first slot. What `mask`
    rules out has logit minus infinity, for those who take the argmax and those who draw.

    The corrected logits live for one slot. Only rows that draw leave something of them behind:
    softmax(logits / temperature) in float32, which is what the verifier must weigh them by.
    """
    if head is None and sampling is None and mask is None:
        return _target_ids(base_logits.argmax(dim=-1), vocabulary), None
    draw = None if sampling is None else _Draw(sampling, base_logits)
    previous = anchor_ids
    chain: list[Tensor] = []
    for k in range(base_logits.shape[1]):
        logits = base_logits[:, k]
        if mask is not None:
            mask.stand(k, previous)
            said = mask.of_few(logits, head, hidden[:, k], previous) if draw is None else None
            if said is not None:
                previous = said
                chain.append(said)
                continue
        if head is not None:
            bias, state = head.bias(previous, hidden[:, k], state)
            logits = logits + bias
        if mask is not None:
            logits = mask.rule(logits)
        chosen = logits.argmax(dim=-1)
        if draw is not None:
            chosen = draw.slot(k, logits, chosen)
        previous = _target_ids(chosen, vocabulary)
        if mask is not None:
            previous = mask.said(previous)
        chain.append(previous)
    return torch.stack(chain, dim=1), None if draw is None else draw.probs


def _target_ids(
    draft_ids: Int[Tensor, "*B"], vocabulary: DraftVocabulary | None
) -> Int[Tensor, "*B"]:
    return draft_ids if vocabulary is None else vocabulary.to_target(draft_ids)


class _Draw:
    """The rows of a batch that draw, and what they drew from."""

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
        """greedy_ids, with the ids of the rows that draw put in their places."""
        scaled = logits.index_select(0, self._rows).float() / self._temperatures
        torch.softmax(scaled, dim=-1, out=self._probs[k])
        drawn = inverse_cdf(self._probs[k], self._uniforms[:, k])
        return greedy_ids.index_copy(0, self._rows, drawn)
