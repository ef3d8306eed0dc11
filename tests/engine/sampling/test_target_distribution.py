"""The processed distribution equals transformers', filter by filter."""

import itertools

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine import EngineSamplingParams
from engine.sampling.target_distribution import SamplingBatch, target_probs

VOCAB = 97


def _by_transformers(logits: torch.Tensor, params: EngineSamplingParams) -> torch.Tensor:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k > 0:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(params.min_p))
    return torch.softmax(warpers(torch.zeros(1, 1), logits), -1)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [*itertools.product([0.3, 1.0, 1.7], [-1, 2, 20, 5000], [1.0, 0.9, 0.2], [0.0, 0.1])],
)
def test_filters_equal_those_of_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = 4 * torch.randn(3, VOCAB)
    params = EngineSamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    batch = SamplingBatch.of([params], vocab_size=VOCAB, device=torch.device("cpu"))
    found = target_probs(logits[None], batch)[0]
    clipped = EngineSamplingParams(
        temperature=temperature, top_k=min(top_k, VOCAB), top_p=top_p, min_p=min_p
    )
    torch.testing.assert_close(found, _by_transformers(logits, clipped), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])  # nearly flat: all of the vocabulary counts
@pytest.mark.parametrize("top_p", [0.05, 0.9, 0.999])
def test_top_p_equals_transformers_however_much_of_a_large_vocabulary_it_keeps(
    top_p: float, spread: float
) -> None:
    logits = spread * torch.randn(2, 5000)
    params = EngineSamplingParams(temperature=1.0, top_p=top_p)
    batch = SamplingBatch.of([params], vocab_size=5000, device=torch.device("cpu"))
    found = target_probs(logits[None], batch)[0]
    expected = _by_transformers(logits, params)
    assert ((found > 0).sum(-1) - (expected > 0).sum(-1)).abs().max() <= 1  # rounding at the edge
    torch.testing.assert_close(found, expected, atol=2e-4 / top_p, rtol=1e-3)


@given(
    scores=st.lists(st.integers(0, 4), min_size=1, max_size=300),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
)
def test_top_p_keeps_the_fewest_likeliest_tokens_that_reach_it_and_of_equals_the_first(
    scores: list[int], top_p: float
) -> None:
    probs = torch.softmax(torch.tensor(scores).double(), -1)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    before, expected = 0.0, set()
    for i in order:
        assume(abs(before - top_p) > 1e-5)
        if before < top_p:
            expected.add(i)
        before += float(probs[i])
    params = EngineSamplingParams(temperature=1.0, top_p=top_p)
    other = EngineSamplingParams(temperature=1.0, top_p=0.3)
    batch = SamplingBatch.of([params, other], vocab_size=len(scores), device=torch.device("cpu"))
    found = target_probs(torch.tensor([scores, scores])[:, None].float(), batch)[0, 0]
    assert set(found.nonzero()[:, 0].tolist()) == expected


def test_a_sequence_is_processed_by_its_own_parameters_in_any_batch() -> None:
    logits = 3 * torch.randn(3, 2, VOCAB)
    params = [
        EngineSamplingParams(temperature=0.5, top_k=3),
        EngineSamplingParams(temperature=1.5, top_p=0.5),
        EngineSamplingParams(temperature=1.0, min_p=0.2),
    ]
    device = torch.device("cpu")
    together = target_probs(logits, SamplingBatch.of(params, vocab_size=VOCAB, device=device))
    for i, each in enumerate(params):
        alone = target_probs(
            logits[i : i + 1], SamplingBatch.of([each], vocab_size=VOCAB, device=device)
        )
        torch.testing.assert_close(together[i : i + 1], alone)


def test_no_temperature_and_one_candidate_are_greedy() -> None:
    assert EngineSamplingParams(temperature=0.0).is_greedy
    assert EngineSamplingParams(temperature=9e-6).is_greedy
    assert EngineSamplingParams(temperature=1.0, top_k=1).is_greedy
    assert not EngineSamplingParams(temperature=1.0, top_k=2).is_greedy
    assert not EngineSamplingParams(temperature=1e-5).is_greedy
