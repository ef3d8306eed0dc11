"""The scheduler plans rounds once per step and verifies their proposals. Integers only."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduler.proposals import Proposal, StepLoad
from engine.scheduler.sequence import SequenceState
from tests.support.engine.planning import ScriptedPlanner
from tests.support.engine.scheduling import Harness, request


def drafts_of(harness: Harness, request_id: str) -> list[int]:
    """The draft tokens of every round of a request."""
    return [
        scheduled.num_drafts
        for plan in harness.plans
        for scheduled in plan.scheduled_seqs
        if scheduled.seq.request.request_id == request_id
        and scheduled.start >= scheduled.seq.num_prompt
    ]


def test_rounds_verify_what_the_planner_proposes() -> None:
    harness = Harness(planner=ScriptedPlanner(lambda caps: (2, 0)), chunk=64)
    harness.scheduler.add(request("a", max_new_tokens=20))
    harness.scheduler.add(request("b", max_new_tokens=20))
    for _ in range(3):
        harness.step()
    assert drafts_of(harness, "a") == [2, 2]
    assert drafts_of(harness, "b") == [0, 0]


def test_a_seeded_request_above_temperature_0_keeps_its_full_number() -> None:
    planner = ScriptedPlanner()
    harness = Harness(planner=planner, chunk=64, accept=lambda scheduled: 0)
    harness.scheduler.add(request("seeded", max_new_tokens=6, temperature=0.7, seed=5))
    harness.scheduler.add(request("unseeded", max_new_tokens=6, temperature=0.7))
    harness.scheduler.add(request("greedy", max_new_tokens=6, seed=5))
    harness.run()
    assert drafts_of(harness, "seeded") == [3, 3, 2, 1, 0]
    assert drafts_of(harness, "unseeded") == [0] * 5
    assert drafts_of(harness, "greedy") == [0] * 5
    assert [list(load.caps) for load in planner.loads] == [[n] * 3 for n in (3, 3, 2, 1, 0)]


@pytest.mark.parametrize("params", [{"top_k": 1, "temperature": 1.0}, {"temperature": 1e-6}])
def test_the_seed_of_a_greedy_request_leaves_drafts_to_the_load(params: dict[str, float]) -> None:
    harness = Harness(planner=ScriptedPlanner(), chunk=64)
    harness.scheduler.add(request("greedy", max_new_tokens=6, seed=5, **params))
    harness.run()
    assert drafts_of(harness, "greedy") == [0] * 5


def test_the_planner_gets_the_chunk_and_the_context_of_the_rounds() -> None:
    planner = ScriptedPlanner()
    harness = Harness(planner=planner, chunk=6)
    harness.scheduler.add(request("old", prompt_len=5, max_new_tokens=20))
    harness.step()
    harness.scheduler.add(request("new", prompt_len=10, max_new_tokens=20))
    for _ in range(3):
        harness.step()
    # The first chunk of a prompt is not counted yet.
    assert [load.chunk_rows for load in planner.loads] == [0, 4, 0]
    assert [load.context for load in planner.loads] == [5, 6, (7 + 10) // 2]


def test_every_round_is_reported_to_the_planner_unless_a_stop_cuts_it() -> None:
    planner = ScriptedPlanner(lambda caps: caps)
    harness = Harness(planner=planner, chunk=64, accept=lambda scheduled: scheduled.num_drafts // 2)
    harness.scheduler.add(request("a", max_new_tokens=9))
    harness.scheduler.add(request("b", max_new_tokens=40, stop_token_ids=frozenset({108})))
    harness.run()
    # Each has a token from its prompt. b ends in its second round, a in a step without drafts.
    assert planner.rounds == [(3, 1), (3, 1), (3, 1), (3, 1), (1, 0)]


def test_an_ended_sequence_is_forgotten_however_it_ends() -> None:
    planner = ScriptedPlanner()
    harness = Harness(planner=planner, chunk=64)
    for name in ("runs", "waits", "finishes"):
        harness.scheduler.add(request(name, max_new_tokens=2))
    harness.step()
    harness.scheduler.abort("runs")
    harness.scheduler.fail("waits", "an error")
    harness.run()
    assert sorted(planner.forgotten) == [0, 1, 2]


@pytest.mark.parametrize(("number", "pages"), [(0, 2), (3, 3)])
def test_a_round_without_drafts_reserves_no_scratch(number: int, pages: int) -> None:
    """Seven tokens and an anchor fill two pages; a draft block would need a third."""
    planner = ScriptedPlanner(lambda caps: (number,) * len(caps))
    harness = Harness(planner=planner, page_size=4, chunk=64)
    harness.scheduler.add(request("a", prompt_len=7, max_new_tokens=20))
    harness.step()
    harness.scheduler.plan()
    assert harness.pages.num_used == pages


@settings(deadline=None)
@given(st.data(), st.integers(12, 40))
def test_any_plan_leaves_every_text_and_every_page_as_they_are(
    data: st.DataObject, num_pages: int
) -> None:
    def decide(caps: Sequence[int]) -> Sequence[int]:
        return [data.draw(st.integers(0, cap)) for cap in caps]

    harness = Harness(num_pages=num_pages, planner=ScriptedPlanner(decide), max_running=3)
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
    planner = ScriptedPlanner(lambda caps: tuple(min(number, cap) for cap in caps))
    batch = Harness(planner=planner, chunk=64, num_pages=24, accept=alone.accept)
    for i in range(2):
        batch.scheduler.add(request(f"r{i}", max_new_tokens=30))
    batch.scheduler.add(seeded)
    batch.run()
    assert drafts_of(batch, "seeded") == drafts_of(alone, "seeded")


class LongLookups(ScriptedPlanner):
    """Proposes a lookup of seven tokens in every round."""

    def plan(self, load: StepLoad) -> Sequence[Proposal]:
        return [self.plan_resumed(seq, cap) for seq, cap in zip(load.seqs, load.caps, strict=True)]

    def plan_resumed(self, seq: SequenceState, cap: int) -> Proposal:
        count = min(7, cap)
        return Proposal(count, (100,) * count, 4, None if count else "limit")


def test_a_lookup_reserves_its_window_and_no_block() -> None:
    harness = Harness(planner=LongLookups(), page_size=4, chunk=64, num_draft_tokens=7)
    harness.scheduler.add(request("a", prompt_len=7, max_new_tokens=20))
    harness.step()
    (scheduled,) = harness.scheduler.plan().scheduled_seqs
    assert scheduled.source == "lookup"
    assert scheduled.kv_len == 7 + 8  # the anchor and seven tokens
    assert harness.pages.num_used == 4


@pytest.mark.parametrize("num_pages", range(7, 16))
def test_lookups_longer_than_a_block_fit_into_any_pool(num_pages: int) -> None:
    harness = Harness(
        planner=LongLookups(),
        num_pages=num_pages,
        chunk=6,
        num_draft_tokens=7,
        accept=lambda scheduled: scheduled.num_drafts // 2,
    )
    for i in range(3):
        harness.scheduler.add(request(f"r{i}", prompt_len=5, max_new_tokens=12, seed=i))
    harness.run()
    for i in range(3):
        assert harness.output(f"r{i}") == list(range(105, 117))
    assert harness.pages.num_used == 0


def test_rounds_are_counted_by_source() -> None:
    harness = Harness(
        planner=LongLookups(), chunk=64, num_draft_tokens=7, accept=lambda scheduled: 0
    )
    harness.scheduler.add(request("a", max_new_tokens=4))
    harness.run()
    finish = harness.finish_of("a").finish
    assert finish is not None
    counts = {
        name: (s.num_rounds, s.num_draft_tokens) for name, s in finish.speculation.sources.items()
    }
    assert counts == {"lookup": (2, 2 + 1), "target": (1, 0)}
