"""Sampling with several options at once, through the whole engine: whole answers against theory."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine import EngineSamplingParams, Request
from engine.build import Built
from engine.loading.target import LoadedTarget, by_transformers_alone
from tests.support.engine.eight_tokens import PROMPT, VOCAB, eight_token_engine, eight_token_target
from tests.support.engine.option_cases import ByParity, OpenAIPenalties
from tests.support.engine.running import run_told


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    return eight_token_target()


NUM_SAMPLES = 6_000
STOP = 2
LONGEST = 3


@dataclass(frozen=True)
class Combined:
    """Some options together."""

    name: str
    params: dict[str, Any]
    is_masked: bool = False


COMBINED = (
    Combined(
        "penalties, bias and top_p",
        {
            "repetition_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.6,
            "logit_bias": ((1, 1.0), (6, -0.7)),
            "top_p": 0.9,
            "temperature": 0.9,
        },
    ),
    Combined(
        "a shortest length, stops, top_k and a negative penalty",
        {
            "min_new_tokens": 2,
            "stop_token_ids": frozenset({STOP}),
            "top_k": 5,
            "frequency_penalty": -0.8,
            "temperature": 1.2,
        },
    ),
    Combined(
        "a row mask, min_p and a penalty",
        {"min_p": 0.15, "repetition_penalty": 0.8, "temperature": 1.0},
        is_masked=True,
    ),
)


def _probs(logits: Tensor, output_ids: tuple[int, ...], combined: Combined) -> Tensor:
    """transformers' processors on one place, and what it lacks."""
    p = EngineSamplingParams(**combined.params)
    ids = torch.tensor([[*PROMPT, *output_ids]])
    scores = logits[None].clone()
    for token_id, value in p.logit_bias:
        scores[0, token_id] += value
    scores = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(p.repetition_penalty),
            OpenAIPenalties(
                len(PROMPT), presence=p.presence_penalty, frequency=p.frequency_penalty
            ),
        ]
    )(ids, scores)
    for token_id in range(VOCAB):
        is_early = token_id in p.stop_token_ids and len(output_ids) < p.min_new_tokens
        is_ruled_out = combined.is_masked and not ByParity.allows(len(output_ids), token_id)
        if is_early or is_ruled_out:
            scores[0, token_id] = float("-inf")
    warpers = LogitsProcessorList([TemperatureLogitsWarper(p.temperature)])
    if p.top_k > 0:
        warpers.append(TopKLogitsWarper(p.top_k))
    if p.top_p < 1:
        warpers.append(TopPLogitsWarper(p.top_p))
    if p.min_p > 0:
        warpers.append(MinPLogitsWarper(p.min_p))
    return torch.softmax(warpers(ids, scores)[0].double(), -1)


def _answers(
    target: LoadedTarget, combined: Combined, output_ids: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every answer that can be, with its probability."""
    stops = combined.params.get("stop_token_ids", frozenset())
    with by_transformers_alone(target.model, "sdpa"), torch.inference_mode():
        ids = torch.tensor([[*PROMPT, *output_ids]])
        logits = target.model(ids, use_cache=False).logits[0, -1]
    for token_id, p in enumerate(_probs(logits, output_ids, combined).tolist()):
        answer = (*output_ids, token_id)
        if p == 0:
            continue
        if token_id in stops or len(answer) == LONGEST:
            yield answer, p
        else:
            yield from ((each, p * q) for each, q in _answers(target, combined, answer))


def _observed(built: Built, combined: Combined) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, NUM_SAMPLES, 400):
        seeds = range(start, start + 400)
        requests = [
            Request(
                str(seed),
                PROMPT,
                EngineSamplingParams(max_new_tokens=LONGEST, seed=seed, **combined.params),
                token_mask=ByParity() if combined.is_masked else None,
            )
            for seed in seeds
        ]
        counts.update(tuple(answer.ids) for answer in run_told(built, requests).values())
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("combined", COMBINED, ids=lambda combined: combined.name)
def test_whole_answers_have_the_distribution_that_the_options_ask_for(
    combined: Combined, target: LoadedTarget, tmp_path: Path
) -> None:
    expected = dict(_answers(target, combined))
    assert sum(expected.values()) == pytest.approx(1, abs=1e-6)
    built = eight_token_engine(target, tmp_path, max_queued_requests=1000)
    observed = _observed(built, combined)
    assert set(observed) <= set(expected)
    common = [answer for answer, p in expected.items() if p * NUM_SAMPLES >= 5]
    rare = NUM_SAMPLES - sum(observed[answer] for answer in common)
    hoped = [expected[answer] * NUM_SAMPLES for answer in common]
    found = [float(observed[answer]) for answer in common]
    rest = NUM_SAMPLES - sum(hoped)
    if rest > 5:
        hoped, found = [*hoped, rest], [*found, float(rare)]
    scale = sum(found) / sum(hoped)
    assert chisquare(found, [h * scale for h in hoped]).pvalue > 0.001
    assert built.engine.snapshot().num_accepted_tokens > 0
