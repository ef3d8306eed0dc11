"""Blocks under a rule: what is ruled out is never said, and has no part in q."""

from dataclasses import dataclass, field

import pytest
import torch
from scipy import stats
from torch import Tensor

from draft.block import BlockSampling
from draft.chain import draft_chain
from draft.masking import MaskedChain, keeps_to
from draft.network.heads import build_markov_head
from draft.vocabulary import DraftVocabulary
from tests.draft.test_chain import HIDDEN, KINDS, VOCAB, WIDTH, block, head_of, sampling_of


@dataclass
class Rule:
    """A ChainMask: places[k] are the tokens of slot k, the same for all of its rows."""

    rows: Tensor
    places: list[set[int]]
    size: int = VOCAB
    is_vast: bool = False  # few() says that it allows too much
    heard: list[list[int]] = field(default_factory=list)

    def stand(self, k: int, previous_ids: Tensor) -> None:
        self.heard = self.heard[:k]
        assert len(self.heard) == k
        self.heard.append(previous_ids.tolist())

    def allows(self, token_ids: Tensor) -> bool:
        return set(token_ids.tolist()) <= self.places[len(self.heard) - 1]

    def few(self, most: int) -> list[list[int]] | None:
        if self.is_vast:
            return None
        return [sorted(self.places[len(self.heard) - 1])] * len(self.rows)

    def allowed(self) -> Tensor:
        words = torch.zeros(len(self.rows), self.size, dtype=torch.bool)
        words[:, sorted(self.places[len(self.heard) - 1])] = True
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
            assert int(ids[row, k]) in rule.places[k]
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
        allowed = sorted(rule.places[k])
        expected = torch.softmax(logits[0, k, allowed].double() / 1.3, -1)
        torch.testing.assert_close(probs[7, k, allowed].double(), expected, atol=1e-6, rtol=0)
        assert probs[7, k].sum() == pytest.approx(1.0)
        counts = torch.bincount(ids[:, k], minlength=VOCAB)[allowed]
        assert counts.sum() == num
        assert stats.chisquare(counts, expected / expected.sum() * num).pvalue > 1e-3


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("target_ids", [None, (1, 3, 5, 7, 9)])
@pytest.mark.parametrize("first", [{1, 3, 4, 9}, {5}], ids=["some", "one"])
def test_a_choice_of_few_is_the_choice_of_the_whole_row(
    kind: str | None, target_ids: tuple[int, ...] | None, first: set[int]
) -> None:
    places = [first, {0, 2, 3, 7}, {5, 7, 8}]
    vocabulary = None if target_ids is None else _words(*target_ids)
    hidden, logits, anchors = block(6, 10 if vocabulary is None else 5)
    head = None
    if kind is not None:
        head = build_markov_head(
            kind,  # type: ignore[arg-type]
            vocab_size=10,
            rank=4,
            hidden_size=HIDDEN,
            num_outputs=logits.shape[2],
        ).requires_grad_(False)
        for parameter in head.parameters():
            parameter *= 4  # so that a bias, and what an RNN remembers, matters
    found = []
    for is_vast in (False, True):
        rule = Rule(torch.arange(6), places, size=10, is_vast=is_vast)
        masked = MaskedChain(rule, vocabulary)
        ids, _ = draft_chain(
            head, hidden, logits, anchors, None, vocabulary=vocabulary, mask=masked
        )
        found.append(ids)
    assert torch.equal(*found)
    assert all(set(found[0][:, k].tolist()) <= places[k] for k in range(WIDTH))


def test_a_block_keeps_to_a_mask_if_all_of_its_tokens_do() -> None:
    anchors = torch.tensor([9, 8, 7])
    block_ids = torch.tensor([[0, 3, 1], [4, 4, 4], [2, 3, 2]])
    rule = Rule(torch.tensor([0, 2]), [{0, 2}, {3}, {1, 2}])
    assert keeps_to(rule, block_ids, anchors)
    assert rule.heard == [[9, 7], [0, 2], [3, 3]]
    assert not keeps_to(Rule(torch.tensor([0, 1]), [{0, 4}, {3}, {1}]), block_ids, anchors)


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
