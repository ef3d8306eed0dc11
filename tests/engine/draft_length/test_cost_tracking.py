"""Costs that were measured on a busy machine come down to what steps take."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from engine.draft_length.cost_model import Curve, StepCosts
from engine.draft_length.cost_tracking import StepTimes, TrackedCosts
from engine.draft_length.draft_budget import DraftBudgetByLoad
from engine.scheduler.draft_allocation import StepLoad
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
    """What is measured of that machine while each pass is disturbed, draft passes otherwise."""
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


def run(
    budget: DraftBudgetByLoad, *, num_sequences: int, chance: float, num_steps: int
) -> list[int]:
    """Steps on the undisturbed machine, where each draft token stands with this chance: the
    drafts of the last ones."""
    rng = random.Random(0)
    load = StepLoad((FULL,) * num_sequences)
    totals = []
    for _ in range(num_steps):
        numbers = budget.allot(load)
        for number in numbers:
            stood = next((i for i in range(number) if rng.random() >= chance), number)
            budget.record(number, stood)
        drafting, rows = sum(n > 0 for n in numbers), num_sequences + sum(numbers)
        budget.record_times(
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


def test_drafts_are_given_up_where_a_disturbed_table_would_have_kept_them() -> None:
    """A row cost 36 ms while it was measured and costs 15; 36 rows seem hardly dearer."""
    busy = measured(lambda seconds: seconds + 0.021, lambda seconds: seconds + 0.004)
    unfollowed = DraftBudgetByLoad(costs=busy, num_draft_tokens=FULL)
    with patch.object(unfollowed, "record_times"):
        kept = run(unfollowed, num_sequences=6, chance=0.6, num_steps=1000)
    assert min(kept) > 0
    budget = DraftBudgetByLoad(costs=busy, num_draft_tokens=FULL)
    found = run(budget, num_sequences=6, chance=0.6, num_steps=1000)
    assert sum(total > 0 for total in found) <= 2  # probes
    assert budget.costs.passes.at(6) == pytest.approx(PASSES.at(6))


def test_what_was_slowed_down_alike_changes_no_choice() -> None:
    calm = DraftBudgetByLoad(costs=measured(lambda seconds: seconds), num_draft_tokens=FULL)
    busy = DraftBudgetByLoad(costs=measured(lambda seconds: 2.4 * seconds), num_draft_tokens=FULL)
    for num_sequences in (1, 2, 3):
        asked: dict[str, Any] = {"num_sequences": num_sequences, "chance": 0.7, "num_steps": 400}
        assert run(busy, **asked) == run(calm, **asked)


def test_sizes_without_steps_come_down_by_the_share_of_the_nearest() -> None:
    costs = measured(lambda seconds: 2 * seconds)
    followed = TrackedCosts(costs)
    for _ in range(8):
        followed.record(times(rows=6, seconds=0.0165, drafting=1, draft_seconds=0.005))
    assert followed.costs.passes.seconds == pytest.approx([s / 2 for s in costs.passes.seconds])
    assert followed.costs.context_per_row == pytest.approx(costs.context_per_row / 2)
    assert followed.costs.drafts == costs.drafts
    for _ in range(8):
        followed.record(times(rows=16, seconds=0.074))
    assert followed.costs.passes.at(16) == pytest.approx(0.074)
    assert followed.costs.passes.at(6) == pytest.approx(0.0165)


def test_a_size_between_two_that_were_measured_is_known_by_itself() -> None:
    """Else a step of 7 rows would speak for 6, of which all was right."""
    followed = TrackedCosts(
        StepCosts(passes=Curve.through({1: 1.0, 6: 1.0, 8: 5.0}), drafts=DRAFTS)
    )
    for rows, seconds in ((6, 1.0), (7, 1.5)):
        for _ in range(8):
            followed.record(times(rows=rows, seconds=seconds))
    assert [followed.costs.passes.at(rows) for rows in (6, 7, 8)] == pytest.approx([1, 1.5, 2.5])


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
def test_costs_stay_without_plain_news(seconds: list[float]) -> None:
    costs = measured(lambda known: known + 0.021)
    followed = TrackedCosts(costs)
    assert not any(followed.record(times(rows=1, seconds=s)) for s in seconds)
    assert followed.costs is costs


def test_rounds_larger_than_what_was_measured_say_nothing() -> None:
    followed = TrackedCosts(measured(lambda seconds: seconds))
    assert not any(followed.record(times(rows=97, seconds=0.001)) for _ in range(20))


def test_an_engine_tells_its_budget_how_long_rounds_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_draft(tmp_path / "draft", block_size=4)
    asked = greedy_requests(prompts(2, vocab=VOCAB), 12)
    with (
        patch(
            "engine.model_setup.draft_backend.measure_costs",
            lambda rig: measured(lambda s: s + 100),
        ),
        caplog.at_level("INFO", logger="engine.draft_length.draft_budget"),
    ):
        built = tiny_engine(draft_folder=folder, draft_budget="auto")
        run_all(built, asked)
    (message,) = caplog.messages
    assert "take less time than measured at start" in message


def test_costs_that_an_engine_is_given_are_kept(tmp_path: Path) -> None:
    folder = write_tiny_draft(tmp_path / "draft", block_size=4)
    costs = measured(lambda seconds: seconds + 100)
    with patch.object(DraftBudgetByLoad, "record_times", side_effect=AssertionError):
        built = tiny_engine(draft_folder=folder, costs=costs)
        run_all(built, greedy_requests(prompts(2, vocab=VOCAB), 12))


def test_a_prompt_beside_rounds_tells_nothing_of_rounds() -> None:
    harness = Harness(chunk=64)
    harness.scheduler.add(request("a", prompt_len=5, max_new_tokens=20))
    harness.step()
    harness.scheduler.add(request("b", prompt_len=7, max_new_tokens=20))
    for _ in range(2):
        harness.step()
    told = [StepTimes.of(plan, draft_seconds=1.0, pass_seconds=2.0) for plan in harness.plans]
    assert told[:2] == [None, None]
    assert told[2] is not None
    assert (told[2].num_sequences, told[2].context) == (
        2,
        (harness.plans[2].scheduled_seqs[0].start + 7) // 2,
    )
