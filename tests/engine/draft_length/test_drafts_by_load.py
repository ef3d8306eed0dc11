"""The scheduler's calls of the draft budget, and its use of the result. Integers only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduler.draft_allocation import StepLoad
from tests.support.engine.scheduling import Harness, request


@dataclass
class Scripted:
    """A scripted draft budget that records its calls."""

    decide: Callable[[StepLoad], Sequence[int]] = lambda load: (0,) * len(load.caps)
    is_suspended: bool = False
    loads: list[StepLoad] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)

    def allot(self, load: StepLoad) -> Sequence[int]:
        self.loads.append(load)
        return self.decide(load)

    def record(self, num_drafts: int, num_accepted: int) -> None:
        self.rounds.append((num_drafts, num_accepted))


def drafts_of(harness: Harness, request_id: str) -> list[int]:
    """The draft tokens of every round of a request."""
    return [
        scheduled.num_drafts
        for plan in harness.plans
        for scheduled in plan.scheduled_seqs
        if scheduled.seq.request.request_id == request_id
        and scheduled.start >= scheduled.seq.num_prompt
    ]


def test_rounds_verify_what_the_budget_allots() -> None:
    harness = Harness(draft_budget=Scripted(lambda load: (2, 0)), chunk=64)
    harness.scheduler.add(request("a", max_new_tokens=20))
    harness.scheduler.add(request("b", max_new_tokens=20))
    for _ in range(3):
        harness.step()
    assert drafts_of(harness, "a") == [2, 2]
    assert drafts_of(harness, "b") == [0, 0]


def test_a_seeded_request_above_temperature_0_keeps_its_full_number() -> None:
    budget = Scripted()
    harness = Harness(draft_budget=budget, chunk=64, accept=lambda scheduled: 0)
    harness.scheduler.add(request("seeded", max_new_tokens=6, temperature=0.7, seed=5))
    harness.scheduler.add(request("unseeded", max_new_tokens=6, temperature=0.7))
    harness.scheduler.add(request("greedy", max_new_tokens=6, seed=5))
    harness.run()
    assert drafts_of(harness, "seeded") == [3, 3, 2, 1, 0]
    assert drafts_of(harness, "unseeded") == [0] * 5
    assert drafts_of(harness, "greedy") == [0] * 5
    assert [load.fixed for load in budget.loads] == [(3,), (3,), (2,), (1,), (0,)]
    assert [load.caps for load in budget.loads] == [
        (3,) * 2,
        (3,) * 2,
        (2,) * 2,
        (1,) * 2,
        (0,) * 2,
    ]


@pytest.mark.parametrize("params", [{"top_k": 1, "temperature": 1.0}, {"temperature": 1e-6}])
def test_the_seed_of_a_greedy_request_leaves_drafts_to_the_load(params: dict[str, float]) -> None:
    harness = Harness(draft_budget=Scripted(), chunk=64)
    harness.scheduler.add(request("greedy", max_new_tokens=6, seed=5, **params))
    harness.run()
    assert drafts_of(harness, "greedy") == [0] * 5


def test_the_budget_is_not_called_where_all_numbers_are_fixed() -> None:
    budget = Scripted()
    harness = Harness(draft_budget=budget, chunk=64)
    harness.scheduler.add(request("a", temperature=1.0, seed=1))
    harness.run()
    assert budget.loads == []


def test_the_budget_gets_the_chunk_and_the_context_of_the_rounds() -> None:
    budget = Scripted()
    harness = Harness(draft_budget=budget, chunk=6)
    harness.scheduler.add(request("old", prompt_len=5, max_new_tokens=20))
    harness.step()
    harness.scheduler.add(request("new", prompt_len=10, max_new_tokens=20))
    for _ in range(3):
        harness.step()
    # The first chunk of a prompt is not counted yet.
    assert [load.chunk_rows for load in budget.loads] == [0, 4, 0]
    assert [load.context for load in budget.loads] == [5, 6, (7 + 10) // 2]


def test_every_round_is_reported_to_the_budget_unless_a_stop_cuts_it() -> None:
    budget = Scripted(lambda load: load.caps)
    harness = Harness(
        draft_budget=budget, chunk=64, accept=lambda scheduled: scheduled.num_drafts // 2
    )
    harness.scheduler.add(request("a", max_new_tokens=9))
    harness.scheduler.add(request("b", max_new_tokens=40, stop_token_ids=frozenset({108})))
    harness.run()
    # Each has a token from its prompt. b ends in its second round, a in a step without drafts.
    assert budget.rounds == [(3, 1), (3, 1), (3, 1), (3, 1), (1, 0)]


def test_withheld_drafts_are_counted() -> None:
    budget = Scripted(lambda load: tuple(min(1, cap) for cap in load.caps), is_suspended=True)
    harness = Harness(draft_budget=budget, accept=lambda scheduled: 0)
    harness.scheduler.add(request("a", max_new_tokens=6))
    harness.run()
    assert drafts_of(harness, "a") == [1, 1, 1, 1, 0]
    assert harness.scheduler.counters.num_withheld_drafts == 2 + 2 + 1
    assert harness.scheduler.is_suspended


def test_without_a_budget_nothing_is_withheld() -> None:
    harness = Harness()
    harness.scheduler.add(request("a"))
    harness.run()
    assert harness.scheduler.counters.num_withheld_drafts == 0
    assert not harness.scheduler.is_suspended


@pytest.mark.parametrize(("number", "pages"), [(0, 2), (3, 3)])
def test_a_round_without_drafts_reserves_no_scratch(number: int, pages: int) -> None:
    """Seven tokens and an anchor fill two pages; a draft block would need a third."""
    budget = Scripted(lambda load: (number,) * len(load.caps))
    harness = Harness(draft_budget=budget, page_size=4, chunk=64)
    harness.scheduler.add(request("a", prompt_len=7, max_new_tokens=20))
    harness.step()
    harness.scheduler.plan()
    assert harness.pages.num_used == pages


@settings(deadline=None)
@given(st.data(), st.integers(12, 40))
def test_any_budget_leaves_every_text_and_every_page_as_they_are(
    data: st.DataObject, num_pages: int
) -> None:
    def decide(load: StepLoad) -> Sequence[int]:
        return [data.draw(st.integers(0, cap)) for cap in load.caps]

    harness = Harness(num_pages=num_pages, draft_budget=Scripted(decide), max_running=3)
    calm = Harness(num_pages=200, max_running=3)
    for each in (harness, calm):
        for i in range(4):
            each.scheduler.add(request(f"r{i}", prompt_len=3 + i, max_new_tokens=12))
        each.run()
    for i in range(4):
        assert harness.output(f"r{i}") == calm.output(f"r{i}")
    assert harness.pages.num_used == 0


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_seeded_request_has_the_same_drafts_in_any_batch(number: int) -> None:
    alone = Harness(
        chunk=64, accept=lambda scheduled: scheduled.start % 3 if scheduled.num_drafts > 2 else 0
    )
    seeded = request("seeded", max_new_tokens=25, temperature=1.0, seed=3)
    alone.scheduler.add(seeded)
    alone.run()
    budget = Scripted(lambda load: tuple(min(number, cap) for cap in load.caps))
    batch = Harness(draft_budget=budget, chunk=64, num_pages=24, accept=alone.accept)
    for i in range(2):
        batch.scheduler.add(request(f"r{i}", max_new_tokens=30))
    batch.scheduler.add(seeded)
    batch.run()
    assert drafts_of(batch, "seeded") == drafts_of(alone, "seeded")
