"""Costs that were measured on a busy machine are lowered to what steps take."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from engine.draft_length.cost_model import Curve, StepCosts
from engine.draft_length.cost_tracking import StepTimes, TrackedCosts
from engine.proposers.fixed_rule import FixedRule
from engine.proposers.planner import PlannerByLoad
from tests.support.engine.planning import load_of, round_of, unlike_sequences
from tests.support.engine.running import greedy_requests, prompts, run_all
from tests.support.engine.scheduling import Harness, request
from tests.support.engine.tiny_models import VOCAB, tiny_engine, write_tiny_draft

FULL = 5
SIZES, COUNTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 96), (1, 2, 4, 8, 16)
# A small model on two cores, in seconds.
PASSES = Curve.through({1: 0.015, 6: 0.0165, 8: 0.021, 16: 0.037, 32: 0.062, 96: 0.180})
DRAFTS = Curve.through({1: 0.0025, 16: 0.012})


def measured(
    disturbed: Callable[[float], float], drafts: Callable[[float], float] | None = None
) -> StepCosts:
    """Costs measured on that machine under a disturbance of target and of draft passes."""
    drafts = drafts or disturbed
    return StepCosts(
        passes=Curve.through({size: disturbed(PASSES.at(size)) for size in SIZES}),
        drafts=Curve.through({count: drafts(DRAFTS.at(count)) for count in COUNTS}),
        context_per_sequence=0.001,
        context_per_row=0.0001,
        context_per_draft=0.0002,
        width=FULL + 1,
    )


def times(*, rows: int, seconds: float, drafting: int = 0, draft_seconds: float = 0.0) -> StepTimes:
    return StepTimes(
        num_sequences=1,
        num_drafting=drafting,
        num_rows=rows,
        context=0,
        draft_seconds=draft_seconds,
        pass_seconds=seconds,
    )


def planner_of(costs: StepCosts) -> PlannerByLoad:
    return PlannerByLoad(costs=costs, rule=FixedRule(num_draft_tokens=FULL, lookup=None))


def run(planner: PlannerByLoad, *, num_sequences: int, chance: float, num_steps: int) -> list[int]:
    """Run steps on the undisturbed machine, where each draft token is accepted with this chance;
    return the numbers of drafts in the last ones."""
    rng = random.Random(0)
    seqs = unlike_sequences(num_sequences)
    load = load_of(seqs, [50] * num_sequences)
    totals = []
    for _ in range(num_steps):
        proposals = planner.plan(load)
        numbers = [proposal.num_tokens for proposal in proposals]
        for seq, proposal in zip(seqs, proposals, strict=True):
            number = proposal.num_tokens
            accepted = next((i for i in range(number) if rng.random() >= chance), number)
            if number:
                planner.record(round_of(seq, proposal), accepted)
        drafting, rows = sum(n > 0 for n in numbers), num_sequences + sum(numbers)
        planner.record_times(
            StepTimes(
                num_sequences=num_sequences,
                num_drafting=drafting,
                num_rows=rows,
                context=0,
                draft_seconds=DRAFTS.at(drafting),
                pass_seconds=PASSES.at(rows),
            )
        )
        totals.append(sum(numbers))
    return totals[-100:]


def test_drafts_are_suspended_where_disturbed_costs_would_have_kept_them() -> None:
    """A row cost 36 ms while it was measured and costs 15; 36 rows seem hardly dearer."""
    busy = measured(lambda seconds: seconds + 0.021, lambda seconds: seconds + 0.004)
    untracked = planner_of(busy)
    with patch.object(untracked, "record_times"):
        kept = run(untracked, num_sequences=6, chance=0.7, num_steps=1000)
    assert min(kept) > 0
    budget = planner_of(busy)
    found = run(budget, num_sequences=6, chance=0.7, num_steps=1000)
    assert sum(total > 0 for total in found) <= 2  # probes
    assert budget.costs.passes.at(6) == pytest.approx(PASSES.at(6))


def test_a_machine_that_slowed_all_measurements_alike_changes_no_choice() -> None:
    calm = planner_of(measured(lambda seconds: seconds))
    busy = planner_of(measured(lambda seconds: 2.4 * seconds))
    for num_sequences in (1, 2, 3):
        scenario: dict[str, Any] = {"num_sequences": num_sequences, "chance": 0.7, "num_steps": 400}
        assert run(busy, **scenario) == run(calm, **scenario)


def test_sizes_without_steps_take_the_ratio_of_the_nearest_size() -> None:
    costs = measured(lambda seconds: 2 * seconds)
    tracked = TrackedCosts(costs)
    for _ in range(8):
        tracked.record(times(rows=6, seconds=0.0165, drafting=1, draft_seconds=0.005))
    assert tracked.costs.passes.seconds == pytest.approx([s / 2 for s in costs.passes.seconds])
    assert tracked.costs.context_per_row == pytest.approx(costs.context_per_row / 2)
    assert tracked.costs.drafts == costs.drafts
    for _ in range(8):
        tracked.record(times(rows=16, seconds=0.074))
    assert tracked.costs.passes.at(16) == pytest.approx(0.074)
    assert tracked.costs.passes.at(6) == pytest.approx(0.0165)


def test_a_size_between_two_measured_ones_has_its_own_ratio() -> None:
    """Otherwise a step of 7 rows would change the cost of 6, which was right."""
    tracked = TrackedCosts(StepCosts(passes=Curve.through({1: 1.0, 6: 1.0, 8: 5.0}), drafts=DRAFTS))
    for rows, seconds in ((6, 1.0), (7, 1.5)):
        for _ in range(8):
            tracked.record(times(rows=rows, seconds=seconds))
    assert [tracked.costs.passes.at(rows) for rows in (6, 7, 8)] == pytest.approx([1, 1.5, 2.5])


@pytest.mark.parametrize(
    "seconds",
    [
        [0.015] * 7,
        [0.033] * 20,  # less, but not by much
        [0.1] * 20,
        [0.015, 0.1] * 3 + [0.1] * 20,
    ],
    ids=["too few", "nearly the same", "slower", "mostly slower"],
)
def test_costs_stay_without_a_clearly_lower_median(seconds: list[float]) -> None:
    costs = measured(lambda known: known + 0.021)
    tracked = TrackedCosts(costs)
    assert not any(tracked.record(times(rows=1, seconds=s)) for s in seconds)
    assert tracked.costs is costs


def test_rounds_larger_than_any_measured_size_change_nothing() -> None:
    tracked = TrackedCosts(measured(lambda seconds: seconds))
    assert not any(tracked.record(times(rows=97, seconds=0.001)) for _ in range(20))


def test_an_engine_reports_the_times_of_rounds_to_its_draft_budget(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_draft(tmp_path / "draft", block_size=4)
    requests = greedy_requests(prompts(2, vocab=VOCAB), 12)
    with (
        patch(
            "engine.model_setup.draft_backend.measure_costs",
            lambda rig: measured(lambda s: s + 100),
        ),
        caplog.at_level("INFO", logger="engine.proposers.planner"),
    ):
        built = tiny_engine(draft_folder=folder, draft_budget="auto")
        run_all(built, requests)
    (message,) = caplog.messages
    assert "take less time than measured at start" in message


def test_given_costs_are_not_changed(tmp_path: Path) -> None:
    folder = write_tiny_draft(tmp_path / "draft", block_size=4)
    costs = measured(lambda seconds: seconds + 100)
    with patch.object(PlannerByLoad, "record_times", side_effect=AssertionError):
        built = tiny_engine(draft_folder=folder, costs=costs)
        run_all(built, greedy_requests(prompts(2, vocab=VOCAB), 12))


def test_a_step_with_a_prompt_chunk_has_no_times() -> None:
    harness = Harness(chunk=64)
    harness.scheduler.add(request("a", prompt_len=5, max_new_tokens=20))
    harness.step()
    harness.scheduler.add(request("b", prompt_len=7, max_new_tokens=20))
    for _ in range(2):
        harness.step()
    found = [StepTimes.of(plan, draft_seconds=1.0, pass_seconds=2.0) for plan in harness.plans]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert (found[2].num_sequences, found[2].context) == (
        2,
        (harness.plans[2].scheduled_seqs[0].start + 7) // 2,
    )
