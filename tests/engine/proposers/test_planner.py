"""Each request gets the drafts that pay, by costs, load and its own earlier rounds."""

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.draft_length.cost_model import Curve, StepCosts
from engine.proposers.fixed_rule import LONG_MATCH, FixedRule
from engine.proposers.lookup import LookupProposer
from engine.proposers.planner import PlannerByLoad
from engine.scheduler.proposals import Proposal
from engine.scheduler.sequence import SequenceState
from tests.support.engine.planning import load_of, round_of, sequence, unlike_sequences

FULL = 5
# A small model on two cores, in seconds.
COSTS = StepCosts(
    passes=Curve.through({1: 0.012, 6: 0.014, 8: 0.019, 16: 0.035, 32: 0.060, 96: 0.180}),
    drafts=Curve.through({1: 0.0025, 16: 0.012}),
)


def planner_of(
    *, lookup_tokens: int = 0, block: int = FULL, costs: StepCosts = COSTS
) -> PlannerByLoad:
    lookup = LookupProposer(max_tokens=lookup_tokens, min_match=2) if lookup_tokens else None
    return PlannerByLoad(costs=costs, rule=FixedRule(num_draft_tokens=block, lookup=lookup))


def run(
    planner: PlannerByLoad,
    seqs: Sequence[SequenceState],
    steps: int,
    *,
    accepted: Callable[[SequenceState, Proposal], int],
    cap: int = 50,
) -> list[list[Proposal]]:
    """Plan rounds at the same texts, and report what is accepted of them."""
    plans = []
    for _ in range(steps):
        proposals = list(planner.plan(load_of(seqs, [cap] * len(seqs))))
        plans.append(proposals)
        for seq, proposal in zip(seqs, proposals, strict=True):
            if proposal.num_tokens:
                planner.record(round_of(seq, proposal), accepted(seq, proposal))
    return plans


def totals(plans: list[list[Proposal]]) -> list[int]:
    return [sum(p.num_tokens for p in plan) for plan in plans]


def test_rejected_drafts_are_suspended_except_for_rare_probes() -> None:
    planner, seqs = planner_of(), unlike_sequences(1)
    run(planner, seqs, 300, accepted=lambda seq, p: 0)
    assert planner.is_suspended
    found = totals(run(planner, seqs, 3000, accepted=lambda seq, p: 0))
    assert found.count(0) > 0.9 * len(found)
    assert FULL in found


@pytest.mark.parametrize("count", [1, 2])
def test_drafts_resume_when_they_are_accepted_again(count: int) -> None:
    planner, seqs = planner_of(), unlike_sequences(count)
    run(planner, seqs, 1000, accepted=lambda seq, p: 0)
    found = totals(run(planner, seqs, 3000, accepted=lambda seq, p: p.num_tokens))
    assert found[-1] == FULL * count


def test_when_the_load_falls_the_next_step_drafts() -> None:
    half = itertools.cycle([0, 2])
    planner, seqs = planner_of(), unlike_sequences(16)
    run(planner, seqs[:1], 200, accepted=lambda seq, p: min(p.num_tokens, next(half)))
    many = totals(run(planner, seqs, 500, accepted=lambda seq, p: min(p.num_tokens, next(half))))
    assert np.mean(many) < 8
    assert totals(run(planner, seqs[:1], 1, accepted=lambda seq, p: 0)) > [0]


def test_chances_that_hardly_pay_do_not_oscillate() -> None:
    planner, seqs = planner_of(), unlike_sequences(1)
    pattern = itertools.cycle([0, 1, 0, 2, 0, 1, 1, 0, 2, 3, 0, 0, 1])
    found = totals(
        run(planner, seqs, 4000, accepted=lambda seq, p: min(p.num_tokens, next(pattern)))
    )
    assert found.count(0) < 0.2 * len(found)


def test_easy_requests_draft_where_hard_ones_do_not() -> None:
    # A row costs a twelfth of a step, and a place in the draft pass half a row.
    even = StepCosts(passes=Curve((4, 28), (0.012, 0.036)), drafts=Curve((1, 4), (0.001, 0.003)))
    planner, seqs = planner_of(costs=even), unlike_sequences(4)
    found = run(planner, seqs, 300, accepted=lambda s, p: p.num_tokens if s.arrival < 2 else 0)
    easy = [p.num_tokens for plan in found[-50:] for p in plan[:2]]
    hard = [p.num_tokens for plan in found[-50:] for p in plan[2:]]
    assert np.mean(easy) > 3
    assert np.mean(hard) < 0.5


def test_the_same_history_makes_the_same_choices() -> None:
    def choices() -> list[list[Proposal]]:
        seqs = unlike_sequences(3)
        return run(planner_of(lookup_tokens=7), seqs, 200, accepted=lambda s, p: p.num_tokens // 2)

    assert choices() == choices()


REPEATING = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 2, 3, 7, 8, 9, 10, 11, 12]


def test_a_long_match_is_looked_up_and_no_match_is_drafted() -> None:
    planner = planner_of(lookup_tokens=7)
    (first,) = planner.plan(load_of([sequence(0, REPEATING)], [50]))
    (second,) = planner.plan(load_of([sequence(1, range(50, 60))], [50]))
    assert first.lookup_ids == (13, 14, 15, 16, 1, 2, 3)[: first.num_tokens]
    assert first.num_tokens >= 3
    assert first.match_len == 6
    assert second.lookup_ids == ()
    assert second.num_tokens > 0


def test_rejected_lookups_give_way_to_drafts() -> None:
    planner, seqs = planner_of(lookup_tokens=7), [sequence(0, REPEATING)]
    plans = run(planner, seqs, 100, accepted=lambda seq, p: 0 if p.lookup_ids else p.num_tokens)
    assert plans[0][0].lookup_ids
    assert not plans[-1][0].lookup_ids
    assert plans[-1][0].num_tokens == FULL


def test_a_lookup_is_no_longer_than_the_output() -> None:
    planner = planner_of(lookup_tokens=7, block=0)
    for cap in range(4):
        (found,) = planner.plan(load_of([sequence(cap, REPEATING)], [cap]))
        assert found.num_tokens == cap
        assert (found.reason == "limit") == (cap == 0)


def test_without_a_draft_model_a_text_without_repetition_has_no_proposal() -> None:
    planner = planner_of(lookup_tokens=7, block=0)
    (found,) = planner.plan(load_of(unlike_sequences(1), [9]))
    assert found == Proposal(0, reason="no_proposal")
    assert not planner.is_suspended


@pytest.mark.parametrize(("text", "is_lookup"), [(REPEATING, True), (range(30, 40), False)])
def test_a_seeded_request_follows_a_rule_of_its_own_text(
    text: Sequence[int], is_lookup: bool
) -> None:
    alone = planner_of(lookup_tokens=7)
    seeded = sequence(0, text, temperature=1.0, seed=1)
    expected = alone.plan(load_of([seeded], [50]))[0]
    assert bool(expected.lookup_ids) == is_lookup
    assert expected.num_tokens == (7 if is_lookup else FULL)
    crowd = planner_of(lookup_tokens=7)
    others = [sequence(i, REPEATING) for i in range(1, 17)]
    run(crowd, others, 50, accepted=lambda seq, p: 0)
    assert crowd.plan(load_of([*others, seeded], [50] * 17))[-1] == expected
    assert crowd.plan_resumed(seeded, 50) == expected


def test_a_seeded_request_takes_a_short_match_for_no_reason_to_look_up() -> None:
    text = [7, 8, 9, 1, 2, 7, 8, 9]
    assert LONG_MATCH > 3
    seeded = sequence(0, text, temperature=1.0, seed=1)
    (found,) = planner_of(lookup_tokens=7).plan(load_of([seeded], [50]))
    assert found == Proposal(FULL)


def test_a_prompt_chunk_leaves_no_more_drafts_than_pay() -> None:
    planner, seqs = planner_of(), unlike_sequences(2)
    alone = totals([list(planner.plan(load_of(seqs, [50, 50])))])[0]
    beside = totals([list(planner.plan(load_of(seqs, [50, 50], chunk_rows=64)))])[0]
    assert beside <= alone


@pytest.mark.parametrize(("count", "limit_us"), [(16, 50), (256, 300)])
def test_a_decision_takes_little_time(count: int, limit_us: float) -> None:
    """Mean over steps with and without a review; three times the aim, for busy machines."""
    planner = planner_of(lookup_tokens=7)
    seqs = [sequence(i, REPEATING if i % 2 else range(50, 60)) for i in range(count)]
    load = load_of(seqs, [50] * count)
    times = []
    for _ in range(100):
        started = time.perf_counter()
        proposals = planner.plan(load)
        times.append(time.perf_counter() - started)
        for seq, proposal in zip(seqs, proposals, strict=True):
            if proposal.num_tokens:
                planner.record(round_of(seq, proposal), proposal.num_tokens // 2)
    turns = np.array(times).reshape(-1, 4).mean(axis=1)
    assert turns.min() < 3e-6 * limit_us
