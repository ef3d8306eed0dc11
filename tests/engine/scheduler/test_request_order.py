"""Requests start and lose their pages by priority, and none waits for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduler.request_order import RequestOrder
from tests.support.engine.scheduling import Harness, request

PRIORITY = RequestOrder("priority")


def started(harness: Harness) -> list[str]:
    """Return the requests in the order in which they first ran."""
    seen: dict[str, None] = {}
    for plan in harness.plans:
        seen |= {s.seq.request.request_id: None for s in plan.scheduled_seqs}
    return list(seen)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (RequestOrder(), ["a", "b", "c", "d"]),
        (PRIORITY, ["b", "d", "a", "c"]),
        (RequestOrder("priority", "lower_first"), ["c", "a", "b", "d"]),
    ],
)
def test_requests_start_in_the_order_of_the_policy(
    order: RequestOrder, expected: list[str]
) -> None:
    harness = Harness(max_running=1, order=order)
    for name, priority in (("a", 0), ("b", 2), ("c", -1), ("d", 2)):
        harness.scheduler.add(request(name, priority=priority))
    harness.run()
    assert started(harness) == expected


def test_a_running_request_is_not_replaced_by_a_higher_priority() -> None:
    harness = Harness(max_running=1, order=PRIORITY)
    harness.scheduler.add(request("low"))
    harness.step()
    harness.scheduler.add(request("high", priority=9))
    harness.run()
    ends = [event.request_id for event in harness.events if event.finish is not None]
    assert ends == ["low", "high"]
    assert harness.scheduler.counters.num_preemptions == 0


@pytest.mark.parametrize("waited", [19.0, 21.0])
def test_waiting_makes_up_for_priority(waited: float) -> None:
    """With 10 s for a step of priority, two steps are worth 20 s."""
    harness = Harness(max_running=1, order=PRIORITY)
    harness.scheduler.add(request("running"))
    harness.step()
    harness.scheduler.add(request("low", priority=1))
    harness.now = waited
    harness.scheduler.add(request("high", priority=3))
    harness.run()
    expected = ["low", "high"] if waited > 20 else ["high", "low"]
    assert started(harness) == ["running", *expected]


def test_a_low_priority_is_served_under_an_endless_stream_of_higher_ones() -> None:
    harness = Harness(max_running=1, order=PRIORITY, max_queued=1000)
    harness.scheduler.add(request("low", priority=0, max_new_tokens=1))
    for i in range(200):  # one arrives each second, and each step ends one
        harness.scheduler.add(request(f"high{i}", priority=5, max_new_tokens=1))
        harness.now += 1.0
        harness.step()
        if "low" in started(harness):
            break
    assert 45 <= harness.now <= 55


def test_when_pages_run_out_the_lowest_priority_is_preempted_first() -> None:
    calm = Harness(num_pages=200, max_running=3, order=PRIORITY)
    tight = Harness(num_pages=13, max_running=3, order=PRIORITY, chunk=64)
    for harness in (calm, tight):
        for name, priority in (("low", -3), ("high", 7), ("middle", 2)):
            harness.scheduler.add(request(name, priority=priority, prompt_len=4, max_new_tokens=30))
    calm.run()
    first_lost, before = "", {"low", "high", "middle"}
    while not tight.scheduler.is_idle:
        num_before = tight.scheduler.counters.num_preemptions
        tight.step()
        running = {s.seq.request.request_id for s in tight.plans[-1].scheduled_seqs}
        if not first_lost and tight.scheduler.counters.num_preemptions > num_before:
            (first_lost,) = before - running
        assert "high" in running or tight.finish_of("high").finish is not None
    assert first_lost == "low"
    for name in ("low", "high", "middle"):
        assert tight.output(name) == calm.output(name)


@settings(deadline=None, max_examples=60)
@given(
    arrivals=st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 30)), min_size=1, max_size=8),
    order=st.sampled_from([RequestOrder(), PRIORITY, RequestOrder("priority", "lower_first")]),
)
def test_the_first_in_order_progresses_in_every_step_and_all_end(
    arrivals: list[tuple[int, float]], order: RequestOrder
) -> None:
    harness = Harness(num_pages=13, max_running=4, order=order)
    requests = {}
    for i, (priority, gap) in enumerate(arrivals):
        harness.now += gap
        name = f"r{i}"
        one = request(name, priority=priority, prompt_len=4, max_new_tokens=12)
        requests[name] = (order.rank(one, harness.now), i)
        harness.scheduler.add(one)
    while not harness.scheduler.is_idle:
        ended = {e.request_id for e in harness.events if e.finish is not None}
        first = min(set(requests) - ended, key=requests.__getitem__)
        harness.step()
        assert first in {s.seq.request.request_id for s in harness.plans[-1].scheduled_seqs}
