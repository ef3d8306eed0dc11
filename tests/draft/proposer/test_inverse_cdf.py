"""Inverse CDF sampling: tokens, edge cases and distribution."""

import pytest
import torch
from scipy import stats

from draft import inverse_cdf


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 1), (0.24, 1), (0.25, 3), (0.74, 3), (0.75, 4), (0.999999, 4)]
)
def test_the_first_token_beyond_the_uniform_is_drawn(uniform: float, token: int) -> None:
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    assert inverse_cdf(probs, torch.tensor(uniform, dtype=torch.float64)) == token


def test_a_uniform_that_rounds_up_to_one_gives_the_last_possible_token() -> None:
    probs = torch.tensor([0.5, 0.5, 0.0, 0.0])
    assert inverse_cdf(probs, torch.tensor(1.0, dtype=torch.float64)) == 1


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    probs = torch.softmax(torch.randn(4, 1000), -1)
    probs[:, torch.randperm(1000)[:700]] = 0
    edges = torch.tensor([0.0, 1.0 - 2**-53])
    for uniforms in (*edges, *torch.rand(50)):
        drawn = inverse_cdf(probs, uniforms.double().expand(4))
        assert (probs.gather(1, drawn[:, None]) > 0).all()


def test_probabilities_are_normalised_by_their_sum() -> None:
    probs = torch.tensor([1.0, 3.0])
    uniforms = torch.tensor([0.2, 0.3], dtype=torch.float64)
    assert inverse_cdf(probs.expand(2, 2), uniforms).tolist() == [0, 1]


def test_a_large_vocabulary_does_not_lose_its_tail() -> None:
    """In float32 a running sum of ten million equal probabilities stops growing half way."""
    probs = torch.full((1 << 22,), 1.0 / (1 << 22))
    middle = torch.tensor(0.75, dtype=torch.float64)
    assert inverse_cdf(probs, middle) == 3 << 20


def test_leading_dimensions_are_kept() -> None:
    probs = torch.softmax(torch.randn(2, 3, 5), -1)
    assert inverse_cdf(probs, torch.rand(2, 3).double()).shape == (2, 3)


def test_nan_probabilities_give_a_valid_token_id() -> None:
    drawn = inverse_cdf(torch.full((5,), float("nan")), torch.tensor(0.5, dtype=torch.float64))
    assert 0 <= int(drawn) < 5


def test_draws_follow_the_distribution() -> None:
    probs = torch.softmax(torch.randn(9), -1)
    uniforms = torch.rand(50_000, dtype=torch.float64)
    counts = torch.bincount(inverse_cdf(probs.expand(50_000, 9), uniforms), minlength=9)
    expected = probs.double() / probs.double().sum() * 50_000
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1024, 5000])
@pytest.mark.parametrize("sparsity", [0.0, 0.99])
def test_sums_by_parts_draw_the_token_of_one_running_sum(size: int, sparsity: float) -> None:
    probs = torch.softmax(3 * torch.randn(200, size), -1)
    probs[torch.rand(200, size) < sparsity] = 0
    probs[:, -1] += 1e-3
    uniforms = torch.rand(200, dtype=torch.float64)
    cumulative = probs.double().cumsum(-1)
    expected = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
    assert torch.equal(inverse_cdf(probs, uniforms), expected[:, 0])
    edges = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    for edge in edges:
        drawn = inverse_cdf(probs, edge.expand(200))
        assert (probs.gather(1, drawn[:, None]) > 0).all()
