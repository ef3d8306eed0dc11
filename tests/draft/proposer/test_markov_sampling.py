"""Markov sampling: argmax or draw, each slot given the token before it."""

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draft.proposer.markov_sampling import draft_chain
from tests.support.draft.chains import (
    KINDS,
    VOCAB,
    corrected_logits,
    head_of,
    random_block,
    sampling_of,
)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_greedy_tokens_are_the_argmax_of_the_corrected_logits(kind: str | None) -> None:
    head, (hidden, logits, anchors) = head_of(kind), random_block(4)
    ids, probs = draft_chain(head, hidden, logits, anchors, None)
    assert probs is None
    for row in range(4):
        expected = corrected_logits(head, hidden[row], logits[row], anchors[row], ids[row])
        assert torch.equal(ids[row], expected.argmax(-1))


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_probs_are_the_softmax_of_the_corrected_logits_at_the_rows_temperature(
    kind: str | None,
) -> None:
    head, (hidden, logits, anchors) = head_of(kind), random_block(4)
    rows, temperatures = [3, 1], [0.5, 2.0]
    ids, probs = draft_chain(head, hidden, logits, anchors, sampling_of(rows, temperatures))
    assert probs is not None
    assert probs.dtype == torch.float32
    for index, (row, temperature) in enumerate(zip(rows, temperatures, strict=True)):
        logits_row = corrected_logits(head, hidden[row], logits[row], anchors[row], ids[row])
        expected = torch.softmax(logits_row / temperature, -1)
        torch.testing.assert_close(probs[index], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_greedy_rows_of_a_mixed_batch_are_those_of_a_greedy_batch(kind: str | None) -> None:
    head, (hidden, logits, anchors) = head_of(kind), random_block(6)
    greedy, _ = draft_chain(head, hidden, logits, anchors, None)
    mixed, _ = draft_chain(head, hidden, logits, anchors, sampling_of([4, 0, 2], [9.0] * 3))
    others = [1, 3, 5]
    assert torch.equal(mixed[others], greedy[others])
    assert not torch.equal(mixed, greedy)


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_pairs_of_drawn_tokens_follow_the_returned_distributions(
    kind: str | None, temperature: float
) -> None:
    num = 40_000
    head, (hidden, logits, anchors) = head_of(kind), random_block(1)
    sampling = sampling_of(list(range(num)), [temperature] * num)
    ids, probs = draft_chain(
        head,
        hidden.expand(num, -1, -1),
        logits.expand(num, -1, -1),
        anchors.expand(num),
        sampling,
    )
    assert probs is not None
    first = probs[0, 0].double()
    pairs = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    for token in range(VOCAB):
        followed = (ids[:, 0] == token).nonzero()
        if len(followed):  # every row that drew this token has the same second distribution
            pairs[token] = first[token] * probs[followed[0, 0], 1].double()
    counts = torch.bincount(ids[:, 0] * VOCAB + ids[:, 1], minlength=VOCAB**2)
    seen = pairs.flatten() * num >= 5
    observed = torch.cat([counts[seen], counts[~seen].sum()[None]]).double()
    expected = torch.cat([pairs.flatten()[seen], 1 - pairs.flatten()[seen].sum()[None]])
    expected = expected.clamp_min(1e-12)
    statistic = ((observed - num * expected) ** 2 / (num * expected))[:-1].sum()
    assert stats.chi2.sf(float(statistic), int(seen.sum())) > 1e-3


class _LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that is created."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and "view" not in str(func):
            self.numel = max(self.numel, out.numel())
        return out


def test_a_greedy_block_never_stores_all_corrected_logits() -> None:
    head, (hidden, logits, anchors) = head_of("vanilla", 64), random_block(4, 64)
    with _LargestTensor() as largest:
        draft_chain(head, hidden, logits, anchors, None)
    assert largest.numel == 4 * 64
