"""The processed distribution equals transformers', filter by filter."""

import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine import EngineSamplingParams
from engine.sampling import target_distribution
from engine.sampling.target_distribution import SamplingBatch

VOCAB = 97


def target_probs(
    logits: torch.Tensor, params: SamplingBatch, *, size: int | None = None
) -> torch.Tensor:
    """Return distributions over the whole vocabulary; by default with enough entries for it."""
    vocab_size = logits.shape[-1]
    found, is_exact = target_distribution.target_probs(logits, params, size=size or vocab_size)
    assert size is not None or is_exact.all()
    if found.ids is None:
        return found.probs
    return torch.zeros(logits.shape).scatter_(-1, found.ids, found.probs)


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


def exactness(
    logits: torch.Tensor, size: int, **params: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which rows are exact from `size` entries; fail where one is not."""
    batch = SamplingBatch.of(
        [EngineSamplingParams(temperature=1.0, **params)],  # type: ignore[arg-type]
        vocab_size=logits.shape[-1],
        device=torch.device("cpu"),
    )
    _, is_exact = target_distribution.target_probs(logits[None], batch, size=size)
    few, whole = (
        target_probs(logits[None], batch, size=size)[0],
        target_probs(logits[None], batch)[0],
    )
    for row in is_exact[0].nonzero()[:, 0]:
        assert torch.equal(few[row] > 0, whole[row] > 0)
        torch.testing.assert_close(few[row], whole[row])
    return is_exact[0]


@settings(deadline=None)
@given(
    scores=st.lists(st.lists(st.integers(0, 5), min_size=40, max_size=40), min_size=1, max_size=4),
    size=st.integers(1, 40),
    top_k=st.sampled_from([-1, 1, 2, 7, 40]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_entries_that_claim_to_be_enough_give_the_whole_distribution_ties_included(
    scores: list[list[int]], size: int, top_k: int, top_p: float, min_p: float
) -> None:
    exactness(torch.tensor(scores).float(), size, top_k=top_k, top_p=top_p, min_p=min_p)


@pytest.mark.parametrize(
    ("params", "size", "is_exact"),
    [
        ({"top_k": 3}, 4, False),  # tokens 2 to 5 are equal: the fourth entry is one of them
        ({"top_k": 3}, 6, False),
        ({"top_k": 3}, 7, True),
        ({"top_k": 2}, 3, True),
        ({"top_p": 0.3}, 2, True),
        ({"top_p": 0.999}, 7, True),
        ({"top_p": 0.9999}, 7, False),
        ({"min_p": 0.05}, 7, True),
        ({"min_p": 0.0001}, 7, False),
        ({"top_k": 2, "top_p": 0.999}, 3, True),
    ],
)
def test_ties_at_the_edge_of_the_entries_are_not_exact(
    params: dict[str, float], size: int, is_exact: bool
) -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 7.0, 7.0, 7.0, 2.0, 1.0, 0.0, 0.0]])
    assert exactness(logits, size, **params).tolist() == [is_exact]
