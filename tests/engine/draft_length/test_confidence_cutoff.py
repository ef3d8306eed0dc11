"""Confidences choose how many tokens are verified, and never change the output."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draft import DraftBlock
from draft.calibration import Scaling
from engine import EngineSamplingParams, Request
from engine.draft_length.confidence_cutoff import ConfidenceThreshold
from engine.errors import LoadError
from engine.scheduler.plan import StepPlan
from tests.support.engine.running import generate_alone, prompts, run_all
from tests.support.engine.scheduling import Harness, request
from tests.support.engine.tiny_models import (
    VOCAB,
    tiny_engine,
    tiny_target,
    write_tiny_draft,
)

NEW_TOKENS = 24
BLOCK = 3


def drafting_plan(count: int = 2) -> StepPlan:
    """Every sequence is past its prompt and drafts a whole block."""
    harness = Harness(block_size=BLOCK, num_draft_tokens=BLOCK, chunk=64)
    for i in range(count):
        harness.scheduler.add(request(str(i), max_new_tokens=40))
    harness.step()
    plan = harness.scheduler.plan()
    assert [scheduled.num_drafts for scheduled in plan.scheduled_seqs] == [BLOCK] * count
    return plan


def block_with(logits: list[list[float]]) -> DraftBlock:
    ids = torch.zeros(len(logits), BLOCK, dtype=torch.long)
    return DraftBlock(ids, None, torch.tensor(logits))


def lengths(
    logits: list[list[float]], *, threshold: float, temperature: float = 1.0, shift: float = 0.0
) -> list[int]:
    scaling = Scaling((temperature,) * BLOCK, (shift,) * BLOCK)
    budget = ConfidenceThreshold(threshold=threshold, scaling=scaling)
    cut = budget.cut(drafting_plan(len(logits)), block_with(logits))
    return [scheduled.num_drafts for scheduled in cut.scheduled_seqs]


def test_tokens_are_verified_while_the_block_is_likely_to_be_accepted() -> None:
    even = [0.0, 0.0, 0.0]  # survival 1/2, 1/4, 1/8
    assert lengths([even, [9.0, 9.0, 9.0]], threshold=0.25) == [2, 3]
    assert lengths([even, [9.0, -9.0, 9.0]], threshold=0.3) == [1, 1]


def test_the_first_token_is_always_verified_and_nan_cuts_nothing() -> None:
    nan = float("nan")
    assert lengths([[-9.0, 9.0, 9.0], [nan, nan, -9.0]], threshold=0.5) == [1, 2]


def test_confidences_are_calibrated() -> None:
    sure = [2.0, 2.0, 2.0]
    assert lengths([sure], threshold=0.6) == [3]
    assert lengths([sure], threshold=0.6, temperature=4.0) == [1]
    assert lengths([sure], threshold=0.6, shift=-1.5) == [1]


def test_a_step_that_drafts_nothing_stays_as_it_is() -> None:
    plan = drafting_plan()
    budget = ConfidenceThreshold(threshold=0.5, scaling=Scaling.identity(BLOCK))
    assert budget.cut(plan, None) is plan


@settings(deadline=None)
@given(
    st.lists(st.floats(-6, 6), min_size=BLOCK, max_size=BLOCK),
    st.lists(st.floats(-6, 6), min_size=BLOCK, max_size=BLOCK),
    st.floats(0.01, 1),
)
def test_whether_a_token_is_verified_does_not_depend_on_later_ones(
    one: list[float], other: list[float], threshold: float
) -> None:
    for k in range(1, BLOCK + 1):
        changed = one[:k] + other[k:]
        before, after = (lengths([row], threshold=threshold)[0] for row in (one, changed))
        assert (before >= k) == (after >= k)


@pytest.mark.parametrize("threshold", [0.05, 0.3, 1.0])
def test_greedy_text_is_the_targets_under_any_threshold(tmp_path: Path, threshold: float) -> None:
    prompt_ids = prompts(4, vocab=VOCAB)
    target = tiny_target()
    expected = [generate_alone(target, p, NEW_TOKENS) for p in prompt_ids]
    built = tiny_engine(
        target=target, draft_folder=write_tiny_draft(tmp_path), confidence_threshold=threshold
    )
    params = EngineSamplingParams(max_new_tokens=NEW_TOKENS)
    found = run_all(built, [Request(str(i), tuple(p), params) for i, p in enumerate(prompt_ids)])
    assert [found[str(i)][0] for i in range(4)] == expected


def test_a_seeded_request_has_the_same_output_alone_and_in_a_batch(tmp_path: Path) -> None:
    folder = write_tiny_draft(tmp_path)
    prompt_ids = prompts(5, vocab=VOCAB)
    requests = [
        Request(str(i), tuple(p), EngineSamplingParams(NEW_TOKENS, temperature=0.9, seed=i))
        for i, p in enumerate(prompt_ids)
    ]
    together = run_all(tiny_engine(draft_folder=folder, confidence_threshold=0.4), requests)
    alone = tiny_engine(draft_folder=folder, confidence_threshold=0.4)
    for one in requests:
        assert run_all(alone, [one])[one.request_id][0] == together[one.request_id][0]


def test_fewer_draft_tokens_are_verified(tmp_path: Path) -> None:
    folder = write_tiny_draft(tmp_path)
    params = EngineSamplingParams(max_new_tokens=NEW_TOKENS)
    requests = [Request(str(i), tuple(p), params) for i, p in enumerate(prompts(4, vocab=VOCAB))]
    verified = []
    for threshold in (None, 1.0):
        built = tiny_engine(draft_folder=folder, confidence_threshold=threshold)
        run_all(built, requests)
        verified.append(built.engine.snapshot().num_draft_tokens)
    assert 0 < verified[1] < verified[0]


@pytest.mark.parametrize(
    ("settings", "mode"),
    [({"confidence_threshold": 0.1}, "threshold"), ({"confidence_schedule": "on"}, "schedule")],
)
def test_a_mode_without_a_confidence_head_is_refused(
    settings: dict[str, Any], mode: str, tmp_path: Path
) -> None:
    folder = write_tiny_draft(tmp_path, enable_confidence_head=False)
    with pytest.raises(LoadError, match=rf"confidence.mode: found {mode}.*accepted: auto, off"):
        tiny_engine(draft_folder=folder, **settings)
