"""Confidences give out a step's rows, and no token decides whether it is verified."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draft import DraftBlock
from draft.calibration import Scaling
from engine import EngineSamplingParams, Request
from engine.draft_length.cost_model import Curve, FloatArray, StepCosts
from engine.proposers.confidence_schedule import ConfidenceSchedule
from engine.proposers.fixed_rule import FixedRule
from engine.proposers.planner import PlannerByLoad
from engine.scheduler.plan import ScheduledSequence, StepPlan
from engine.scheduler.proposals import Proposal
from tests.support.engine.planning import load_of, round_of, sequence, unlike_sequences
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft

BLOCK = 3
NEW_TOKENS = 24
EVEN = StepCosts(
    passes=Curve.through({1: 0.010, 4: 0.011, 64: 0.040}), drafts=Curve.through({1: 0.001})
)


def block_of(confidences: Sequence[Sequence[float]]) -> DraftBlock:
    chances = torch.tensor(confidences)
    ids = torch.zeros(chances.shape, dtype=torch.long)
    return DraftBlock(ids, None, torch.logit(chances, eps=1e-6))


def cut(rounds: Sequence[ScheduledSequence], confidences: Sequence[Sequence[float]]) -> list[int]:
    """Return the drafts that the rounds verify."""
    schedule = ConfidenceSchedule(
        scaling=Scaling.identity(len(confidences[0])), record=lambda seqs, found: None
    )
    kept = schedule.cut(StepPlan(tuple(rounds)), block_of(confidences))
    return [s.num_drafts for s in kept.scheduled_seqs]


def rounds_of(budgeted: Sequence[int | None], num_tokens: int = BLOCK) -> list[ScheduledSequence]:
    return [
        round_of(sequence(i), Proposal(num_tokens, num_budgeted=b)) for i, b in enumerate(budgeted)
    ]


def test_the_likeliest_tokens_of_all_blocks_are_verified() -> None:
    confidences = [[0.9, 0.9, 0.9], [0.5, 0.5, 0.5], [0.2, 0.9, 0.9]]
    assert cut(rounds_of([2, 2, 1]), confidences) == [3, 2, 0]
    assert cut(rounds_of([1, 0, 0]), confidences) == [1, 0, 0]
    assert cut(rounds_of([3, 3, 3]), confidences) == [3, 3, 3]


def test_a_round_that_is_not_budgeted_keeps_its_drafts() -> None:
    assert cut(rounds_of([None, 1]), [[0.1, 0.1, 0.1], [0.9, 0.9, 0.9]]) == [3, 1]


def test_a_block_without_a_verified_token_is_a_plain_round() -> None:
    schedule = ConfidenceSchedule(scaling=Scaling.identity(BLOCK), record=lambda seqs, found: None)
    (kept,) = schedule.cut(StepPlan(tuple(rounds_of([0]))), block_of([[0.5] * 3])).scheduled_seqs
    assert (kept.source, kept.reason, kept.is_drafting) == ("target", "confidence", True)


def test_a_confidence_that_is_no_number_counts_as_certain() -> None:
    nan = float("nan")
    schedule = ConfidenceSchedule(scaling=Scaling.identity(BLOCK), record=lambda seqs, found: None)
    block = DraftBlock(
        torch.zeros(2, BLOCK, dtype=torch.long), None, torch.tensor([[nan] * 3, [2.0] * 3])
    )
    kept = schedule.cut(StepPlan(tuple(rounds_of([2, 1]))), block)
    assert [s.num_drafts for s in kept.scheduled_seqs] == [3, 0]


CONFIDENCES = st.lists(
    st.lists(st.floats(0.01, 0.99), min_size=BLOCK, max_size=BLOCK), min_size=3, max_size=3
)


@settings(deadline=None)
@given(CONFIDENCES, CONFIDENCES, st.integers(0, 3 * BLOCK), st.integers(0, 2))
def test_whether_a_token_is_verified_does_not_depend_on_it_or_on_later_ones(
    one: list[list[float]], other: list[list[float]], total: int, row: int
) -> None:
    """Token k decides the confidences after position k, which is that of the next token."""
    rounds = rounds_of([total, 0, 0])
    before = cut(rounds, one)[row]
    for k in range(1, BLOCK + 1):
        changed = [*one]
        changed[row] = one[row][:k] + other[row][k:]
        assert (before >= k) == (cut(rounds, changed)[row] >= k)


@settings(deadline=None)
@given(CONFIDENCES, st.integers(0, 3 * BLOCK))
def test_the_verified_tokens_are_as_likely_as_any_of_that_number(
    confidences: list[list[float]], total: int
) -> None:
    survival = np.cumprod(confidences, axis=1)

    def expected(numbers: Sequence[int]) -> float:
        return sum(float(survival[i, :n].sum()) for i, n in enumerate(numbers))

    every = itertools.product(range(BLOCK + 1), repeat=3)
    best = max(expected(numbers) for numbers in every if sum(numbers) == total)
    assert expected(cut(rounds_of([total, 0, 0]), confidences)) == pytest.approx(best, rel=1e-5)


# -- Appendix A of the paper -----------------------------------------------------------------

P, Q = (0.7, 0.3), (0.5, 0.5)  # of the tokens A and B, by the target and by the draft
STEPS_PER_SECOND = (1.0, 0.5, 0.45)  # with 1, 2 and 3 rows
BY_FIRST_TOKEN = ((0.8, 0.9), (0.8, 1e-6))  # confidences of a block that begins with A, with B


def share_of_a(lengths: Sequence[int]) -> float:
    """Return the chance that the output begins with A, given how many drafts are verified if the
    block begins with A, and with B."""
    total = 0.0
    for first, length in enumerate(lengths):
        if length == 0:
            total += Q[first] * P[0]
        else:
            accepted = min(1.0, P[first] / Q[first])
            residual = np.maximum(np.array(P) - Q, 0.0)
            of_bonus = residual[0] / residual.sum()
            total += Q[first] * (accepted * (first == 0) + (1 - accepted) * of_bonus)
    return total


def test_a_search_over_the_blocks_own_confidences_is_biased() -> None:
    def searched(confidences: Sequence[float]) -> int:
        tokens = np.cumsum([1.0, *np.cumprod(confidences)])
        return int(np.argmax(tokens * STEPS_PER_SECOND))

    lengths = [searched(confidences) for confidences in BY_FIRST_TOKEN]
    assert lengths == [2, 0]
    assert share_of_a(lengths) == pytest.approx(0.85)


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_a_total_by_earlier_rounds_leaves_the_targets_distribution(accepted: int) -> None:
    """After rounds that accepted much or little, a block with either token is cut alike."""
    costs = StepCosts(
        passes=Curve((1, 2, 3), tuple(1 / s for s in STEPS_PER_SECOND)),
        drafts=Curve.through({1: 0.0}),
    )
    planner = PlannerByLoad(
        costs=costs,
        rule=FixedRule(num_draft_tokens=2, lookup=None),
        schedules_confidence=True,
    )
    schedule = ConfidenceSchedule(scaling=Scaling.identity(2), record=planner.record_confidences)
    seqs = unlike_sequences(1)
    for _ in range(30):
        (proposal,) = planner.plan(load_of(seqs, [9]))
        lengths = []
        for confidences in BY_FIRST_TOKEN:
            scheduled = round_of(seqs[0], proposal)
            block = block_of([confidences])
            (kept,) = schedule.cut(StepPlan((scheduled,)), block).scheduled_seqs
            lengths.append(kept.num_drafts)
        assert min(lengths[0], 1) == min(lengths[1], 1)
        assert share_of_a(lengths) == pytest.approx(P[0])
        if proposal.num_tokens:
            planner.record(kept, min(accepted, kept.num_drafts))


# -- planning --------------------------------------------------------------------------------


def planner_of(costs: StepCosts = EVEN) -> PlannerByLoad:
    return PlannerByLoad(
        costs=costs,
        rule=FixedRule(num_draft_tokens=BLOCK, lookup=None),
        schedules_confidence=True,
    )


def run(planner: PlannerByLoad, confidences: FloatArray, steps: int) -> list[int]:
    """Run steps with blocks of these confidences, which come true on average; return totals."""
    rng = np.random.default_rng(0)
    schedule = ConfidenceSchedule(
        scaling=Scaling.identity(BLOCK), record=planner.record_confidences
    )
    seqs = unlike_sequences(len(confidences))
    totals = []
    for _ in range(steps):
        plan = StepPlan(
            tuple(
                round_of(seq, proposal)
                for seq, proposal in zip(
                    seqs, planner.plan(load_of(seqs, [50] * len(seqs))), strict=True
                )
            )
        )
        totals.append(sum(s.num_budgeted or 0 for s in plan.scheduled_seqs))
        rows = [s.seq.arrival for s in plan.drafting]
        block = block_of(confidences[rows].tolist()) if rows else None
        for s in schedule.cut(plan, block).scheduled_seqs:
            right = rng.random(BLOCK) < confidences[s.seq.arrival]
            if s.is_drafting:
                planner.record(s, int(np.cumprod(right)[: s.num_drafts].sum()))
    return totals


def test_the_total_follows_earlier_confidences_where_nothing_was_verified() -> None:
    sure, unsure = np.full((12, BLOCK), 0.95), np.full((12, BLOCK), 0.2)
    assert np.mean(run(planner_of(), sure, 60)[-20:]) > 2 * 12
    assert np.mean(run(planner_of(), unsure, 60)[-20:]) < 12 / 2


def test_a_budgeted_block_is_drafted_whole() -> None:
    planner, seqs = planner_of(), unlike_sequences(6)
    found = planner.plan(load_of(seqs, [50, 50, 50, 50, 50, 2]))
    budgeted = [p for p in found if p.num_budgeted]
    assert len(budgeted) > 2
    assert [p.num_tokens for p in budgeted[:-1]] == [BLOCK] * (len(budgeted) - 1)
    assert (budgeted[-1].num_tokens, found[-1].num_tokens) == (2, 2)


def test_a_seeded_request_is_never_cut() -> None:
    planner = planner_of()
    seeded = sequence(99, (1, 2, 3), temperature=1.0, seed=1)
    others = unlike_sequences(7)
    for _ in range(20):
        found = planner.plan(load_of([*others, seeded], [50] * 8))[-1]
        assert found == Proposal(BLOCK)


# -- through the engine ----------------------------------------------------------------------

SCHEDULED: dict[str, Any] = {"confidence_schedule": "on", "costs": EVEN, "max_running_requests": 8}


@pytest.mark.parametrize("extra", [{}, {"num_pages": 30}, {"lookup": "auto"}], ids=str)
def test_greedy_text_is_the_targets(extra: dict[str, Any], tmp_path: Path) -> None:
    target = tiny_target(has_eos=False)
    given = prompts(8, vocab=VOCAB)
    expected = [generate_alone(target, p, NEW_TOKENS) for p in given]
    built = tiny_engine(
        target=target, draft_folder=write_tiny_draft(tmp_path), **SCHEDULED, **extra
    )
    found = run_all(built, greedy_requests(given, NEW_TOKENS))
    assert [found[str(i)][0] for i in range(len(given))] == expected
    snapshot = built.engine.snapshot()
    assert snapshot.sources["draft"].num_rounds > 0
    assert snapshot.num_used_pages == 0


def test_a_seeded_request_has_the_same_output_alone_and_in_a_crowd(tmp_path: Path) -> None:
    folder = write_tiny_draft(tmp_path)
    requests = [
        Request(
            str(i),
            tuple(p),
            EngineSamplingParams(NEW_TOKENS, temperature=0.9, seed=i if i % 2 else None),
        )
        for i, p in enumerate(prompts(8, vocab=VOCAB))
    ]
    together = run_all(tiny_engine(draft_folder=folder, **SCHEDULED), requests)
    alone = tiny_engine(draft_folder=folder, **SCHEDULED)
    for one in requests[1::2]:
        assert run_all(alone, [one])[one.request_id][0] == together[one.request_id][0]
