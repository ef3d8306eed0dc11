"""Masked sampling: a masked token is never proposed and has probability 0 in q."""

from dataclasses import dataclass, field

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from draft.network.draft_vocabulary import DraftVocabulary
from draft.network.heads import build_markov_head
from draft.network.int8_linear import Int8Linear
from draft.proposer.block import BlockSampling
from draft.proposer.markov_sampling import draft_chain
from draft.proposer.masking import MaskedChain, satisfies_mask
from tests.support.draft.chains import (
    HIDDEN,
    KINDS,
    VOCAB,
    WIDTH,
    head_of,
    random_block,
    sampling_of,
)


@dataclass
class FixedMask:
    """A ChainMask that allows allowed_ids[k] in slot k, in all of its rows."""

    rows: Tensor
    allowed_ids: list[set[int]]
    size: int = VOCAB
    allows_many: bool = False  # few() returns None
    previous: list[list[int]] = field(default_factory=list)

    def advance(self, k: int, previous_ids: Tensor) -> None:
        self.previous = self.previous[:k]
        assert len(self.previous) == k
        self.previous.append(previous_ids.tolist())

    def allows(self, token_ids: Tensor) -> bool:
        return set(token_ids.tolist()) <= self.allowed_ids[len(self.previous) - 1]

    def few(self, most: int) -> list[list[int]] | None:
        if self.allows_many:
            return None
        return [sorted(self.allowed_ids[len(self.previous) - 1])] * len(self.rows)

    def allowed(self) -> Tensor:
        allowed = torch.zeros(len(self.rows), self.size, dtype=torch.bool)
        allowed[:, sorted(self.allowed_ids[len(self.previous) - 1])] = True
        return allowed


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_masked_rows_take_the_best_allowed_token_and_others_the_best_of_all(
    kind: str | None,
) -> None:
    head, (hidden, logits, anchors) = head_of(kind), random_block(4)
    before = logits.clone()
    mask = FixedMask(torch.tensor([3, 1]), [{0, 4}, {2, 3}, {1, 2}])
    plain, _ = draft_chain(head, hidden, logits, anchors, None)
    ids, _ = draft_chain(head, hidden, logits, anchors, None, mask=MaskedChain(mask, None))
    assert torch.equal(ids[[0, 2]], plain[[0, 2]])
    for row in (3, 1):
        for k in range(WIDTH):
            assert int(ids[row, k]) in mask.allowed_ids[k]
    assert mask.previous == [
        anchors[[3, 1]].tolist(),
        ids[[3, 1], 0].tolist(),
        ids[[3, 1], 1].tolist(),
    ]
    assert torch.equal(logits, before), "the logits may be a kernel's buffer"


def test_masked_rows_draw_from_the_renormalised_allowed_tokens() -> None:
    num = 20_000
    hidden, logits, anchors = random_block(1)
    mask = FixedMask(torch.arange(num), [{0, 2, 4}, {1, 3}, {0, 1, 2}])
    ids, probs = draft_chain(
        None,
        hidden.expand(num, -1, -1),
        logits.expand(num, -1, -1),
        anchors.expand(num),
        sampling_of(list(range(num)), [1.3] * num),
        mask=MaskedChain(mask, None),
    )
    assert probs is not None
    for k in range(WIDTH):
        allowed = sorted(mask.allowed_ids[k])
        expected = torch.softmax(logits[0, k, allowed].double() / 1.3, -1)
        torch.testing.assert_close(probs[7, k, allowed].double(), expected, atol=1e-6, rtol=0)
        assert probs[7, k].sum() == pytest.approx(1.0)
        counts = torch.bincount(ids[:, k], minlength=VOCAB)[allowed]
        assert counts.sum() == num
        assert stats.chisquare(counts, expected / expected.sum() * num).pvalue > 1e-3


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("target_ids", [None, (1, 3, 5, 7, 9)])
@pytest.mark.parametrize("first", [{1, 3, 4, 9}, {5}], ids=["some", "one"])
@pytest.mark.parametrize("is_int8", [False, True])
def test_a_partial_bias_selects_the_same_token_as_the_full_bias(
    kind: str | None, target_ids: tuple[int, ...] | None, first: set[int], is_int8: bool
) -> None:
    allowed_ids = [first, {0, 2, 3, 7}, {5, 7, 8}]
    vocabulary = None if target_ids is None else _vocabulary(*target_ids)
    hidden, logits, anchors = random_block(6, 10 if vocabulary is None else 5)
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
            parameter *= 4  # makes the bias and the RNN state matter
        if is_int8:
            assert isinstance(head.markov_w2, nn.Linear)
            head.markov_w2 = Int8Linear.of(head.markov_w2)
        assert head.supports_partial_bias == (kind != "rnn")
    found = []
    for allows_many in (False, True):
        mask = FixedMask(torch.arange(6), allowed_ids, size=10, allows_many=allows_many)
        masked = MaskedChain(mask, vocabulary)
        ids, _ = draft_chain(
            head, hidden, logits, anchors, None, vocabulary=vocabulary, mask=masked
        )
        found.append(ids)
    assert torch.equal(*found)
    assert all(set(found[0][:, k].tolist()) <= allowed_ids[k] for k in range(WIDTH))


def test_a_block_satisfies_a_mask_if_all_of_its_tokens_do() -> None:
    anchors = torch.tensor([9, 8, 7])
    block_ids = torch.tensor([[0, 3, 1], [4, 4, 4], [2, 3, 2]])
    mask = FixedMask(torch.tensor([0, 2]), [{0, 2}, {3}, {1, 2}])
    assert satisfies_mask(mask, block_ids, anchors)
    assert mask.previous == [[9, 7], [0, 2], [3, 3]]
    assert not satisfies_mask(
        FixedMask(torch.tensor([0, 1]), [{0, 4}, {3}, {1}]), block_ids, anchors
    )


def _vocabulary(*target_ids: int) -> DraftVocabulary:
    vocabulary = DraftVocabulary(size=len(target_ids))
    vocabulary.target_ids.copy_(torch.tensor(target_ids))
    return vocabulary


def test_the_only_allowed_token_has_probability_one_even_outside_the_draft_vocabulary() -> None:
    vocabulary = _vocabulary(1, 3, 5, 7, 9)  # of ten tokens
    hidden, logits, anchors = random_block(3)
    mask = FixedMask(torch.tensor([2, 0]), [{4}, {1, 2, 9}, {7}], size=10)
    masked = MaskedChain(mask, vocabulary)
    sampling = BlockSampling(
        torch.tensor([1, 2]), torch.ones(2), torch.full((2, WIDTH), 0.4, dtype=torch.float64)
    )
    ids, probs = draft_chain(
        None, hidden, logits, anchors, sampling, vocabulary=vocabulary, mask=masked
    )
    assert probs is not None
    q = masked.force_probs(vocabulary.scatter(probs, vocab_size=10), sampling.rows)
    for row in (0, 2):
        assert (int(ids[row, 0]), int(ids[row, 2])) == (4, 7)
        assert int(ids[row, 1]) in {1, 9}
    assert q[1, 0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert q[1, 2, 7] == 1
    assert q[1, 1, [1, 9]].sum() == pytest.approx(1.0)
    assert torch.equal(q[0], vocabulary.scatter(probs, vocab_size=10)[0]), "row 1 has no mask"


def test_q_is_unmasked_if_no_allowed_token_is_in_the_draft_vocabulary() -> None:
    vocabulary = _vocabulary(0, 2, 4, 6, 8)
    hidden, logits, anchors = random_block(1)
    mask = FixedMask(torch.tensor([0]), [{1, 3}, {0, 1}, {0, 1}], size=10)
    masked = MaskedChain(mask, vocabulary)
    sampling = sampling_of([0], [1.0])
    _, probs = draft_chain(
        None, hidden, logits, anchors, sampling, vocabulary=vocabulary, mask=masked
    )
    assert probs is not None
    torch.testing.assert_close(probs[0, 0], torch.softmax(logits[0, 0], -1))
