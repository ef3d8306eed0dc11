"""Blocks under a rule: what is ruled out is never said, and has no part in q."""

from dataclasses import dataclass, field

import pytest
import torch
from scipy import stats
from torch import Tensor

from draft.block import BlockSampling
from draft.chain import draft_chain
from draft.masking import MaskedChain
from draft.vocabulary import DraftVocabulary
from tests.draft.test_chain import KINDS, VOCAB, WIDTH, block, head_of, sampling_of


@dataclass
class Rule:
    """A ChainMask: allows[k] are the tokens of slot k, the same for all of its rows."""

    rows: Tensor
    allows: list[set[int]]
    size: int = VOCAB
    heard: list[list[int]] = field(default_factory=list)

    def allowed(self, k: int, previous_ids: Tensor) -> Tensor:
        assert len(self.heard) == k
        self.heard.append(previous_ids.tolist())
        words = torch.zeros(len(self.rows), self.size, dtype=torch.bool)
        words[:, sorted(self.allows[k])] = True
        return words


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_masked_rows_take_the_best_of_what_is_allowed_and_others_the_best_of_all(
    kind: str | None,
) -> None:
    head, (hidden, logits, anchors) = head_of(kind), block(4)
    before = logits.clone()
    rule = Rule(torch.tensor([3, 1]), [{0, 4}, {2, 3}, {1, 2}])
    plain, _ = draft_chain(head, hidden, logits, anchors, None)
    ids, _ = draft_chain(head, hidden, logits, anchors, None, mask=MaskedChain(rule, None))
    assert torch.equal(ids[[0, 2]], plain[[0, 2]])
    for row in (3, 1):
        for k in range(WIDTH):
            assert int(ids[row, k]) in rule.allows[k]
    assert rule.heard == [
        anchors[[3, 1]].tolist(),
        ids[[3, 1], 0].tolist(),
        ids[[3, 1], 1].tolist(),
    ]
    assert torch.equal(logits, before), "the logits may be a kernel's buffer"


def test_masked_rows_draw_from_the_rest_of_their_distribution() -> None:
    num = 20_000
    hidden, logits, anchors = block(1)
    rule = Rule(torch.arange(num), [{0, 2, 4}, {1, 3}, {0, 1, 2}])
    ids, probs = draft_chain(
        None,
        hidden.expand(num, -1, -1),
        logits.expand(num, -1, -1),
        anchors.expand(num),
        sampling_of(list(range(num)), [1.3] * num),
        mask=MaskedChain(rule, None),
    )
    assert probs is not None
    for k in range(WIDTH):
        allowed = sorted(rule.allows[k])
        expected = torch.softmax(logits[0, k, allowed].double() / 1.3, -1)
        torch.testing.assert_close(probs[7, k, allowed].double(), expected, atol=1e-6, rtol=0)
        assert probs[7, k].sum() == pytest.approx(1.0)
        counts = torch.bincount(ids[:, k], minlength=VOCAB)[allowed]
        assert counts.sum() == num
        assert stats.chisquare(counts, expected / expected.sum() * num).pvalue > 1e-3


def _words(*target_ids: int) -> DraftVocabulary:
    vocabulary = DraftVocabulary(size=len(target_ids))
    vocabulary.target_ids.copy_(torch.tensor(target_ids))
    return vocabulary


def test_the_only_allowed_token_is_said_for_certain_even_without_a_word_for_it() -> None:
    vocabulary = _words(1, 3, 5, 7, 9)  # of ten tokens
    hidden, logits, anchors = block(3)
    rule = Rule(torch.tensor([2, 0]), [{4}, {1, 2, 9}, {7}], size=10)
    masked = MaskedChain(rule, vocabulary)
    sampling = BlockSampling(
        torch.tensor([1, 2]), torch.ones(2), torch.full((2, WIDTH), 0.4, dtype=torch.float64)
    )
    ids, probs = draft_chain(
        None, hidden, logits, anchors, sampling, vocabulary=vocabulary, mask=masked
    )
    assert probs is not None
    q = masked.with_forced(vocabulary.spread(probs, vocab_size=10), sampling.rows)
    for row in (0, 2):
        assert (int(ids[row, 0]), int(ids[row, 2])) == (4, 7)
        assert int(ids[row, 1]) in {1, 9}
    assert q[1, 0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert q[1, 2, 7] == 1
    assert q[1, 1, [1, 9]].sum() == pytest.approx(1.0)
    assert torch.equal(q[0], vocabulary.spread(probs, vocab_size=10)[0]), "row 1 has no mask"


def test_where_the_draft_has_no_word_for_what_is_allowed_q_is_what_it_drew_from() -> None:
    vocabulary = _words(0, 2, 4, 6, 8)
    hidden, logits, anchors = block(1)
    rule = Rule(torch.tensor([0]), [{1, 3}, {0, 1}, {0, 1}], size=10)
    masked = MaskedChain(rule, vocabulary)
    sampling = sampling_of([0], [1.0])
    _, probs = draft_chain(
        None, hidden, logits, anchors, sampling, vocabulary=vocabulary, mask=masked
    )
    assert probs is not None
    torch.testing.assert_close(probs[0, 0], torch.softmax(logits[0, 0], -1))
