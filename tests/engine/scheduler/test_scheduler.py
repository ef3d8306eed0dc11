"""The scheduler's promises, on integers."""

import dataclasses
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import EngineBusy, FinishReason, RequestRejected, Round
from tests.support.engine.planning import ScriptedPlanner
from tests.support.engine.scheduling import Harness, request


def test_a_prompt_goes_through_in_chunks_and_only_the_last_one_commits() -> None:
    harness = Harness(chunk=6)
    harness.scheduler.add(request("a", prompt_len=14))

    spans = []
    for _ in range(3):
        harness.step()
        (scheduled,) = harness.plans[-1].scheduled_seqs
        spans.append((scheduled.start, scheduled.stop, scheduled.num_drafts, scheduled.samples))

    assert spans == [(0, 6, 0, False), (6, 12, 0, False), (12, 14, 0, True)]
    assert harness.output("a") == [114]


def test_after_the_first_token_every_round_is_the_anchor_and_its_drafts() -> None:
    harness = Harness(block_size=3, num_draft_tokens=2)
    harness.scheduler.add(request("a", prompt_len=3, max_new_tokens=20))
    harness.step()
    harness.step()
    (scheduled,) = harness.plans[-1].scheduled_seqs
    assert (scheduled.start, scheduled.stop, scheduled.num_drafts) == (3, 4, 2)


def test_a_round_never_drafts_past_max_new_tokens() -> None:
    harness = Harness()
    harness.scheduler.add(request("a", prompt_len=3, max_new_tokens=6))
    harness.run()
    assert [p.scheduled_seqs[0].num_drafts for p in harness.plans] == [0, 3, 0]
    assert len(harness.output("a")) == 6


def test_chunks_and_rounds_share_a_step() -> None:
    harness = Harness(chunk=4)
    harness.scheduler.add(request("old", prompt_len=3, max_new_tokens=30))
    harness.step()
    harness.scheduler.add(request("new", prompt_len=9))
    harness.step()
    kinds = [(s.seq.request.request_id, s.samples) for s in harness.plans[-1].scheduled_seqs]
    assert kinds == [("old", True), ("new", False)]


def test_after_every_step_all_tokens_but_the_anchor_have_valid_keys_and_values() -> None:
    harness = Harness(accept=lambda scheduled: scheduled.num_drafts // 2)
    harness.scheduler.add(request("a", prompt_len=4, max_new_tokens=40))
    harness.step()
    while not harness.scheduler.is_idle:
        for committed in harness.step():
            seq = committed.scheduled.seq
            assert seq.kv_len == len(seq.token_ids) - 1
            assert committed.num_rows == seq.kv_len - committed.scheduled.start


@pytest.mark.parametrize("stop_at", range(104, 112))
def test_a_stop_token_cuts_ids_rows_and_statistics_at_one_point(stop_at: int) -> None:
    harness = Harness()
    harness.scheduler.add(
        request("a", prompt_len=3, max_new_tokens=40, stop_token_ids=frozenset({stop_at}))
    )
    harness.run()
    finish = harness.finish_of("a").finish
    assert finish is not None
    assert harness.output("a") == list(range(103, stop_at + 1))
    assert (finish.reason, finish.matched) == (FinishReason.STOP, stop_at)
    assert finish.num_output_tokens == stop_at - 102
    committed_in_rounds = finish.speculation.num_accepted + finish.speculation.num_rounds
    assert committed_in_rounds == finish.num_output_tokens - 1  # the first came from the prompt


def test_a_stop_wins_over_the_length_limit_on_the_same_token() -> None:
    harness = Harness()
    harness.scheduler.add(
        request("a", prompt_len=3, max_new_tokens=5, stop_token_ids=frozenset({107}))
    )
    harness.run()
    finish = harness.finish_of("a").finish
    assert finish is not None
    assert finish.reason is FinishReason.STOP


def test_a_stop_string_found_by_the_scanner_ends_the_request() -> None:
    class Scanner:
        def feed(self, token_id: int) -> str | None:
            return "stop!" if token_id == 105 else None

    harness = Harness()
    one = request("a", prompt_len=3, max_new_tokens=30)
    harness.scheduler.add(type(one)("a", one.prompt_ids, one.params, Scanner()))
    harness.run()
    finish = harness.finish_of("a").finish
    assert finish is not None
    assert (harness.output("a"), finish.matched) == ([103, 104, 105], "stop!")


def test_when_pages_run_out_the_youngest_is_preempted_and_every_output_stays_the_same() -> None:
    calm = Harness(num_pages=200, max_running=6)
    tight = Harness(num_pages=16, max_running=6)
    for harness in (calm, tight):
        for i in range(6):
            harness.scheduler.add(request(f"r{i}", prompt_len=3 + i, max_new_tokens=30))
        harness.run()
    assert calm.scheduler.counters.num_preemptions == 0
    assert tight.scheduler.counters.num_preemptions > 0
    for i in range(6):
        assert tight.output(f"r{i}") == calm.output(f"r{i}")
    assert tight.pages.num_used == 0


def test_the_oldest_request_progresses_in_every_step_even_with_few_pages() -> None:
    harness = Harness(num_pages=13, max_running=6)
    for i in range(6):
        harness.scheduler.add(request(f"r{i}", prompt_len=4, max_new_tokens=30))
    while not harness.scheduler.is_idle:
        ended = {e.request_id for e in harness.events if e.finish is not None}
        oldest = min({f"r{i}" for i in range(6)} - ended)
        harness.step()
        assert oldest in {
            scheduled.seq.request.request_id for scheduled in harness.plans[-1].scheduled_seqs
        }
    assert harness.scheduler.counters.num_preemptions > 0


def test_a_resumed_sequence_leaves_its_anchor_to_a_round_of_its_own() -> None:
    harness = Harness(num_pages=12, max_running=2, chunk=64)
    harness.scheduler.add(request("old", prompt_len=4, max_new_tokens=36))
    harness.scheduler.add(request("young", prompt_len=4, max_new_tokens=36))
    harness.run()
    assert harness.scheduler.counters.num_preemptions > 0
    resumed = [
        scheduled
        for plan in harness.plans
        for scheduled in plan.scheduled_seqs
        if scheduled.num_committed > 1 and scheduled.stop > scheduled.seq.num_prompt
    ]
    assert resumed
    assert not any(scheduled.num_drafts for scheduled in resumed)
    anchors = [
        scheduled.start
        for plan in harness.plans
        for scheduled in plan.scheduled_seqs
        if scheduled.seq.request.request_id == "young" and scheduled.num_drafts > 0
    ]
    alone = Harness(chunk=64)
    alone.scheduler.add(request("young", prompt_len=4, max_new_tokens=36))
    alone.run()
    assert anchors == [
        p.scheduled_seqs[0].start for p in alone.plans if p.scheduled_seqs[0].num_drafts > 0
    ]


def test_an_abort_frees_pages_at_once_wherever_the_request_is() -> None:
    harness = Harness(max_running=1, chunk=4)
    harness.scheduler.add(request("running", prompt_len=9))
    harness.scheduler.add(request("waiting"))
    harness.step()
    for request_id in ("waiting", "running"):
        finish = harness.scheduler.abort(request_id)
        assert finish is not None
        assert finish.reason is FinishReason.ABORT
    assert harness.pages.num_used == 0
    assert harness.scheduler.is_idle
    assert harness.scheduler.abort("running") is None


def test_a_prefix_hit_covers_prompt_tokens_but_never_the_last_one() -> None:
    harness = Harness(prefix_cache=True, chunk=64)
    harness.scheduler.add(request("first", prompt_len=12, max_new_tokens=2))
    harness.run()
    harness.scheduler.add(request("again", prompt_len=12, max_new_tokens=2))
    harness.run()
    finish = harness.finish_of("again").finish
    assert finish is not None
    assert finish.num_cached_tokens == 8  # of 12: the third page would hold the last token
    assert harness.output("again") == harness.output("first")
    assert harness.pages.num_used == 0


@pytest.mark.parametrize("max_queued", [0, 1, 3])
def test_the_queue_begins_where_the_slots_end(max_queued: int) -> None:
    harness = Harness(max_running=2, max_queued=max_queued)
    for i in range(2 + max_queued):
        harness.scheduler.add(request(f"r{i}"))
    with pytest.raises(EngineBusy, match="queue is full"):
        harness.scheduler.add(request("one too many"))
    harness.step()
    with pytest.raises(EngineBusy, match="queue is full"):
        harness.scheduler.add(request("still one too many"))
    harness.scheduler.abort("r0")
    harness.scheduler.add(request("one less"))


def test_prompts_of_different_salts_are_computed_apart() -> None:
    harness = Harness(prefix_cache=True, chunk=64)
    cached = []
    for i, salt in enumerate(("", "x", "y", "x", "")):
        one = dataclasses.replace(request(str(i), prompt_len=12), cache_salt=salt)
        harness.scheduler.add(one)
        harness.run()
        finish = harness.finish_of(str(i)).finish
        assert finish is not None
        cached.append(finish.num_cached_tokens)
    assert cached == [0, 0, 0, 8, 8]


def test_a_twin_of_another_salt_is_not_awaited() -> None:
    harness = Harness(prefix_cache=True, chunk=64)
    for name, salt in (("a", "x"), ("b", "x"), ("c", "y")):
        harness.scheduler.add(dataclasses.replace(request(name, prompt_len=12), cache_salt=salt))
    harness.step()
    assert [s.seq.request.request_id for s in harness.plans[0].scheduled_seqs] == ["a", "c"]


def test_an_id_in_use_is_refused() -> None:
    harness = Harness()
    harness.scheduler.add(request("a"))
    with pytest.raises(RequestRejected, match="'a' is in use"):
        harness.scheduler.add(request("a"))


def test_a_blocked_head_of_the_queue_is_matched_again_only_when_pages_changed() -> None:
    harness = Harness(num_pages=11, prefix_cache=True, chunk=64, accept=lambda scheduled: 0)
    harness.scheduler.add(request("old", prompt_len=17, max_new_tokens=20))
    harness.step()
    harness.scheduler.add(request("blocked", prompt_len=38, max_new_tokens=2))
    with patch.object(harness.pages, "match_prefix", wraps=harness.pages.match_prefix) as match:
        for _ in range(3):
            harness.step()
        assert harness.scheduler.is_queued("blocked")
        assert match.call_count == 1
        harness.run()
    assert harness.output("blocked") == [138, 139]


def test_a_blocked_head_of_the_queue_leaves_the_order_of_eviction_alone() -> None:
    harness = Harness(num_pages=12, prefix_cache=True, chunk=64)
    for name, first in (("a", 1), ("b", 51)):
        prompt = tuple(range(first, first + 9))
        harness.scheduler.add(
            dataclasses.replace(request(name, max_new_tokens=1), prompt_ids=prompt)
        )
        harness.run()
    order = list(harness.pages._cache._idle)
    harness.scheduler.add(
        dataclasses.replace(request("old", max_new_tokens=20), prompt_ids=tuple(range(200, 217)))
    )
    harness.step()
    harness.scheduler.add(request("blocked", prompt_len=30, max_new_tokens=2))
    harness.step()
    assert harness.scheduler.is_queued("blocked")
    left = list(harness.pages._cache._idle)
    assert left == [page for page in order if page in left]


def test_a_sequence_that_resumes_from_the_prefix_cache_keeps_to_the_load() -> None:
    harness = Harness(
        num_pages=10, max_running=2, chunk=64, prefix_cache=True, planner=ScriptedPlanner()
    )
    harness.scheduler.add(request("old", prompt_len=4, max_new_tokens=24))
    harness.scheduler.add(request("young", prompt_len=4, max_new_tokens=24))
    harness.run()
    assert harness.scheduler.counters.num_preemptions > 0
    assert not any(s.num_drafts for plan in harness.plans for s in plan.scheduled_seqs)


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3), (None, 3)])
def test_a_request_caps_the_draft_tokens_of_its_rounds(limit: int | None, expected: int) -> None:
    harness = Harness(num_draft_tokens=3)
    harness.scheduler.add(request("capped", max_new_tokens=9, num_draft_tokens=limit))
    harness.scheduler.add(request("free", max_new_tokens=40))
    harness.run()
    most = {"capped": 0, "free": 0}
    for scheduled in (s for plan in harness.plans for s in plan.scheduled_seqs):
        name = scheduled.seq.request.request_id
        most[name] = max(most[name], scheduled.num_drafts)
    assert most == {"capped": expected, "free": 3}
    rounds = [e for e in harness.events if e.request_id == "capped"][1:]
    capped = len(rounds) if expected < 3 else 0
    assert harness.scheduler.counters.num_capped_rounds == capped


def test_the_planner_gets_the_requests_limit_as_the_most_it_may_propose() -> None:
    planner = ScriptedPlanner(lambda caps: caps)
    harness = Harness(planner=planner)
    for name, limit in (("plain", 0), ("one", 1), ("free", None)):
        harness.scheduler.add(request(name, max_new_tokens=40, num_draft_tokens=limit))
    seeded = {"seed": 3, "temperature": 1.0, "num_draft_tokens": 2}
    harness.scheduler.add(request("seeded", max_new_tokens=40, **seeded))
    harness.run()
    assert any(list(load.caps) == [0, 1, 3, 2] for load in planner.loads)


def test_an_event_describes_its_round() -> None:
    harness = Harness(num_draft_tokens=3, accept=lambda scheduled: min(2, scheduled.num_drafts))
    harness.scheduler.add(request("a", max_new_tokens=8))
    harness.run()
    assert [event.rounds for event in harness.events] == [
        (Round("target", 0, 0, 1),),
        (Round("draft", 3, 2, 3),),
        (Round("draft", 3, 2, 3),),
        (Round("target", 0, 0, 1),),
    ]


def test_a_round_that_a_stop_cuts_counts_the_tokens_that_are_kept() -> None:
    harness = Harness(num_draft_tokens=3)
    stop = {"stop_token_ids": frozenset({108}), "ignore_eos": True}
    harness.scheduler.add(request("a", prompt_len=5, max_new_tokens=20, **stop))
    harness.run()
    (last,) = harness.events[-1].rounds
    assert (last.num_drafted, last.num_accepted, last.num_tokens) == (3, 2, 3)
    speculation = harness.finish_of("a").finish.speculation  # type: ignore[union-attr]
    accepted = sum(r.num_accepted for event in harness.events for r in event.rounds)
    assert speculation.num_accepted == accepted


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_in_any_order_of_arrivals_and_aborts_each_request_ends_once_and_no_page_leaks(
    data: st.DataObject,
) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    block_size = draw(0, 5)
    harness = Harness(
        num_pages=draw(12, 24),
        page_size=draw(1, 6) if draw(0, 1) else 4,
        block_size=block_size,
        num_draft_tokens=draw(0, block_size),
        max_running=draw(1, 5),
        chunk=draw(1, 9),
        prefix_cache=bool(draw(0, 1)),
        accept=lambda scheduled: draw(0, scheduled.num_drafts),
    )
    room = harness.num_pages * harness.page_size - block_size
    added, aborted = [], set()
    for i in range(draw(1, 8)):
        prompt_len = draw(1, max(1, min(10, room // 2)))
        one = request(f"r{i}", prompt_len=prompt_len, max_new_tokens=draw(1, 12))
        try:
            harness.scheduler.add(one)
        except RequestRejected:
            continue
        added.append(one)
        for _ in range(draw(0, 3)):
            if not harness.scheduler.is_idle:
                harness.step()
        if draw(0, 4) == 0 and harness.scheduler.abort(f"r{i}") is not None:
            aborted.add(f"r{i}")
    harness.run()

    assert harness.pages.num_used == 0
    assert harness.pages.num_available == harness.num_pages
    for one in added:
        if one.request_id in aborted:
            continue
        first = len(one.prompt_ids)
        expected = [100 + first + i for i in range(one.params.max_new_tokens)]
        assert harness.output(one.request_id) == expected
        harness.finish_of(one.request_id)  # exactly one


def test_a_request_is_queued_until_it_first_runs() -> None:
    harness = Harness(max_running=1)
    for name in ("a", "b"):
        harness.scheduler.add(request(name))
    assert harness.scheduler.is_queued("a")
    harness.step()
    queued = [harness.scheduler.is_queued(name) for name in ("a", "b", "unknown")]
    assert queued == [False, True, False]
    harness.scheduler.abort("b")
    assert not harness.scheduler.is_queued("b")
