"""Verification is lossless: greedy by prefix agreement, sampled in distribution."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from draft.proposer.inverse_cdf import inverse_cdf
from engine.sampling.rejection import (
    Verdict,
    most_likely,
    verify_greedy,
    verify_point_mass,
    verify_sampled,
)
from engine.sampling.target_distribution import TokenProbs

Verify = Callable[..., Verdict]
VOCAB = 5
ROWS = 60_000


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.lists(
            st.sampled_from([-float("inf"), -1.0, -0.0, 0.0, 2.5, 3.0, float("nan")]),
            min_size=40,
            max_size=40,
        ),
        min_size=0,
        max_size=4,
    ),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_most_likely_token_is_the_one_that_argmax_finds(
    rows: list[list[float]], dtype: torch.dtype
) -> None:
    scores = torch.tensor(rows, dtype=dtype).view(-1, 40)
    assert torch.equal(most_likely(scores), scores.argmax(dim=-1))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_greedy_accepts_the_longest_prefix_of_the_targets_argmax_tokens(
    data: st.DataObject,
) -> None:
    width = data.draw(st.integers(0, 5))
    ids = st.lists(st.integers(0, 2), min_size=width, max_size=width)
    drafts, num_drafts = data.draw(ids), data.draw(st.integers(0, width))
    choices = data.draw(st.lists(st.integers(0, 2), min_size=width + 1, max_size=width + 1))

    verdict = verify_greedy(
        torch.tensor([drafts]).long().reshape(1, width),
        torch.tensor([choices]),
        torch.tensor([num_drafts]),
    )

    expected = 0
    while expected < num_drafts and drafts[expected] == choices[expected]:
        expected += 1
    assert verdict.num_accepted.tolist() == [expected]
    assert verdict.bonus_ids.tolist() == [choices[expected]]


def _joint_of_first_two(
    verify: Verify, q: Tensor, p: Tensor, num_drafts: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Counts of the first two output tokens, and what the target alone would give.

    q [K, V] and p(next | first) are chosen so that rows after the first depend on it: p[0] [V],
    p[1 + x] [V] for first token x. The last row is reached only through its own bonus.
    """
    gen = torch.Generator().manual_seed(seed)
    block = q.shape[0]
    uniforms = torch.rand(ROWS, block + 1, 3, generator=gen, dtype=torch.float64)
    draft = torch.stack(
        [inverse_cdf(q[k].expand(ROWS, -1), uniforms[:, k, 0]) for k in range(block)], dim=1
    )
    target = torch.empty(ROWS, block + 1, VOCAB)
    target[:, 0] = p[0]
    for k in range(block):
        target[:, k + 1] = p[1 + draft[:, k]]
    verdict = verify(
        draft,
        q.expand(ROWS, -1, -1).contiguous(),
        TokenProbs(target),
        torch.full((ROWS,), num_drafts),
        accept_uniforms=uniforms[:, :block, 1],
        bonus_uniforms=uniforms[:, :, 2],
    )
    first = torch.where(verdict.num_accepted > 0, draft[:, 0], verdict.bonus_ids)
    second = torch.where(verdict.num_accepted > 1, draft[:, min(1, block - 1)], verdict.bonus_ids)
    # Rounds that committed one token: the next round begins with a fresh draw from the target.
    fresh = inverse_cdf(p[1 + first], torch.rand(ROWS, generator=gen, dtype=torch.float64))
    second = torch.where(verdict.num_accepted == 0, fresh, second)
    observed = torch.bincount(first * VOCAB + second, minlength=VOCAB**2)
    expected = (p[0][:, None] * p[1:]).flatten() * ROWS
    return observed, expected


def _p_value(verify: Verify, q: Tensor, p: Tensor, num_drafts: int) -> float:
    observed, expected = _joint_of_first_two(verify, q, p, num_drafts)
    expected = expected.double() * (observed.sum() / expected.double().sum())
    return float(chisquare(observed.double().numpy(), expected.numpy()).pvalue)


def _distributions(kind: str) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(3)
    p = torch.softmax(torch.randn(1 + VOCAB, VOCAB, generator=gen), -1)
    if kind == "good":
        return torch.stack([p[0], p[1]]), p
    if kind == "bad":
        return torch.softmax(3 * torch.randn(2, VOCAB, generator=gen), -1), p
    return torch.full((2, VOCAB), 1 / VOCAB), p


@pytest.mark.parametrize("num_drafts", [0, 1, 2])
@pytest.mark.parametrize("kind", ["good", "bad", "uniform"])
def test_sampled_output_is_distributed_as_the_target_alone(kind: str, num_drafts: int) -> None:
    q, p = _distributions(kind)
    assert _p_value(verify_sampled, q, p, num_drafts) > 0.001


def test_a_biased_verifier_fails_the_same_test() -> None:
    def accepts_too_much(*args: Tensor, **kwargs: Tensor) -> Verdict:
        kwargs["accept_uniforms"] = kwargs["accept_uniforms"] * 0.9
        return verify_sampled(*args, **kwargs)

    q, p = _distributions("bad")
    assert _p_value(accepts_too_much, q, p, 2) < 0.001


def test_a_draft_distribution_of_nan_counts_as_no_draft() -> None:
    def overflowing(*args: Tensor, **kwargs: Tensor) -> Verdict:
        ids, q, *rest = args
        broken = q.clone()
        broken[::2, 1] = float("nan")
        last = torch.where(torch.arange(len(ids)) % 2 == 0, VOCAB - 1, ids[:, 1])
        return verify_sampled(torch.stack([ids[:, 0], last], 1), broken, *rest, **kwargs)

    q, p = _distributions("bad")
    observed, expected = _joint_of_first_two(overflowing, q, p, 2)
    first = observed.view(VOCAB, VOCAB).sum(1).double()
    hoped = p[0].double() * first.sum() / p[0].double().sum()
    assert chisquare(first.numpy(), hoped.numpy()).pvalue > 0.001
    assert expected.shape == observed.shape


def test_a_token_with_zero_target_probability_is_never_generated() -> None:
    p = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]]).expand(2000, -1, -1)
    q = torch.tensor([[[1.0, 0.0, 0.0]]]).expand(2000, -1, -1)
    uniforms = torch.rand(2000, 2, 2, dtype=torch.float64)
    verdict = verify_sampled(
        torch.zeros(2000, 1, dtype=torch.long),
        q,
        TokenProbs(p),
        torch.ones(2000, dtype=torch.long),
        accept_uniforms=uniforms[:, :1, 0],
        bonus_uniforms=uniforms[:, :, 1],
    )
    assert verdict.num_accepted.max() == 0
    assert set(verdict.bonus_ids.tolist()) == {1, 2}


@pytest.mark.parametrize("num_drafts", [0, 1, 2])
@pytest.mark.parametrize("rule", ["sampled", "point mass"])
def test_a_distribution_of_few_entries_gives_the_verdict_of_the_whole_one(
    rule: str, num_drafts: int
) -> None:
    """Entries of a vocabulary of 9: tokens 1, 4, 5 and 8; the others have probability 0."""
    rows, block, kept = 400, 2, torch.tensor([1, 4, 5, 8])
    few = torch.softmax(torch.randn(rows, block + 1, 4), -1)
    whole = torch.zeros(rows, block + 1, 9).index_copy_(2, kept, few)
    uniforms = torch.rand(rows, block + 1, 2, dtype=torch.float64)
    q = torch.softmax(torch.randn(rows + 3, block, 9), -1)
    given = {
        "accept_uniforms": uniforms[:, :block, 0],
        "bonus_uniforms": uniforms[..., 1],
    }
    draft_ids, counts = torch.randint(9, (rows, block)), torch.full((rows,), num_drafts)
    order = torch.randperm(rows + 3)[:rows]
    verdicts = []
    for p in (TokenProbs(whole), TokenProbs(few, kept.expand(rows, block + 1, 4))):
        if rule == "sampled":
            verdicts.append(
                verify_sampled(draft_ids, q, p, counts, draft_rows=order, **given)  # type: ignore[arg-type]
            )
            in_order = verify_sampled(draft_ids, q[order], p, counts, **given)
            assert torch.equal(in_order.bonus_ids, verdicts[-1].bonus_ids)
        else:
            verdicts.append(verify_point_mass(draft_ids, p, counts, **given))
    assert torch.equal(verdicts[0].num_accepted, verdicts[1].num_accepted)
    assert torch.equal(verdicts[0].bonus_ids, verdicts[1].bonus_ids)
    assert num_drafts == 0 or verdicts[0].num_accepted.max() > 0
