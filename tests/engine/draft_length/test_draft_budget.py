"""The draft budget allots as many drafts as pay at a load."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft_length.cost_model import Curve, StepCosts
from engine.draft_length.draft_budget import DraftBudgetByLoad, best_allotment, worth
from engine.scheduler.draft_allocation import StepLoad

FULL = 5
# A small model on two cores, in seconds.
COSTS = StepCosts(
    passes=Curve.through({1: 0.012, 6: 0.014, 8: 0.019, 16: 0.035, 32: 0.060, 96: 0.180}),
    drafts=Curve.through({1: 0.0025, 16: 0.012}),
)


def powers(chance: float, count: int = FULL) -> list[float]:
    return [chance**i for i in range(1, count + 1)]


def rising(*, most: float, count: int) -> st.SearchStrategy[tuple[float, ...]]:
    """Seconds, each at least those before."""
    return st.lists(st.floats(0.001, most), min_size=count, max_size=count).map(
        lambda steps: tuple(itertools.accumulate(steps))
    )


@st.composite
def costs(draw: st.DrawFn) -> StepCosts:
    return StepCosts(
        passes=Curve((1, 3, 4, 9), draw(rising(most=1.0, count=4))),
        drafts=Curve((1, 2, 4), draw(rising(most=0.5, count=3))),
        context_per_sequence=draw(st.floats(0, 0.01)),
        context_per_row=draw(st.floats(0, 0.01)),
        context_per_draft=draw(st.floats(0, 0.01)),
    )


loads = st.builds(
    StepLoad,
    caps=st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple),
    fixed=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    context=st.integers(0, 100),
)
survivals = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(
    lambda chances: list(itertools.accumulate(chances, lambda a, b: a * b))
)


def every_allotment(load: StepLoad) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(cap + 1) for cap in load.caps)))


@settings(deadline=None)
@given(loads, survivals, costs())
def test_the_choice_has_the_best_rate_of_all_allotments(
    load: StepLoad, survival: list[float], prices: StepCosts
) -> None:
    def rate(numbers: tuple[int, ...]) -> float:
        tokens, seconds = worth(load, numbers, survival, prices)
        return tokens / seconds

    chosen = best_allotment(load, survival, prices)
    assert all(0 <= number <= cap for number, cap in zip(chosen, load.caps, strict=True))
    assert rate(chosen) == pytest.approx(max(map(rate, every_allotment(load))))


@settings(deadline=None)
@given(loads, survivals, costs(), st.integers(1, 40))
def test_with_a_chunk_drafts_earn_as_much_as_their_time_without_one(
    load: StepLoad, survival: list[float], prices: StepCosts, chunk_rows: int
) -> None:
    tokens, seconds = worth(load, best_allotment(load, survival, prices), survival, prices)
    earned = tokens / seconds

    def surplus(numbers: tuple[int, ...]) -> float:
        rows = load.num_rows + sum(numbers) + chunk_rows
        drafting = sum(n > 0 for n in (*numbers, *load.fixed))
        seconds = prices.pass_seconds(
            num_sequences=load.num_sequences, num_rows=rows, context=load.context
        ) + prices.draft_seconds(num_sequences=drafting, context=load.context)
        return worth(load, numbers, survival, prices)[0] - earned * seconds

    with_chunk = StepLoad(load.caps, load.fixed, chunk_rows, load.context)
    best = surplus(best_allotment(with_chunk, survival, prices))
    assert best == pytest.approx(max(map(surplus, every_allotment(load))))


@given(
    st.integers(1, 12),
    st.floats(0.05, 1),
    st.floats(0.0001, 0.01),
    st.floats(1, 4),
)
def test_dearer_rows_never_buy_more_drafts(
    count: int, chance: float, per_row: float, dearer: float
) -> None:
    def total(price: float) -> int:
        passes = Curve((1, 101), (0.01, 0.01 + 100 * price))
        prices = StepCosts(passes=passes, drafts=Curve((1,), (0.002,)))
        return sum(best_allotment(StepLoad((FULL,) * count), powers(chance), prices))

    assert total(dearer * per_row) <= total(per_row)


def test_one_sequence_drafts_and_many_do_not() -> None:
    by_load = {
        count: sum(best_allotment(StepLoad((FULL,) * count), powers(0.5), COSTS))
        for count in (1, 2, 4, 8, 16)
    }
    assert by_load[1] >= 4
    assert by_load[2] >= 2
    assert by_load[8] == by_load[16] == 0


def test_many_sequences_all_draft_where_rows_are_cheap() -> None:
    cheap = StepCosts(passes=Curve((1, 9), (1.0, 1.001)), drafts=Curve((1,), (0.01,)))
    assert best_allotment(StepLoad((FULL,) * 61), powers(0.9), cheap) == (FULL,) * 61


def test_where_rows_become_dear_some_sequences_draft_and_others_do_not() -> None:
    cliff = StepCosts(
        passes=Curve((1, 8, 9, 40), (0.010, 0.011, 0.018, 0.019)),
        drafts=Curve((1, 4), (0.001, 0.002)),
    )
    # Eight rows for four sequences: four drafts, the likeliest ones.
    assert best_allotment(StepLoad((3,) * 4), powers(0.6, 3), cliff) == (1, 1, 1, 1)
    # After the jump rows are cheap again, and with such chances it pays.
    assert best_allotment(StepLoad((3,) * 4), powers(1.0, 3), cliff) == (3, 3, 3, 3)
    # Six sequences and two spare rows: the two with the largest caps.
    caps = (1, 3, 1, 3, 1, 1)
    assert best_allotment(StepLoad(caps), powers(0.6, 3), cliff) == (0, 1, 0, 1, 0, 0)


def test_sequences_with_a_fixed_number_count_as_load() -> None:
    assert sum(best_allotment(StepLoad((FULL,)), powers(0.6), COSTS)) == FULL
    assert best_allotment(StepLoad((FULL,), fixed=(0,) * 15), powers(0.6), COSTS) == (0,)


def test_drafts_are_not_suspended_for_a_small_gain() -> None:
    even = StepCosts(passes=Curve((1, 2), (1.0, 1.51)), drafts=Curve((1,), (0.0,)))
    load = StepLoad((1,))
    assert best_allotment(load, [0.5], even) == (0,)
    assert best_allotment(load, [0.5], even, patience=0.03) == (1,)


def run(
    budget: DraftBudgetByLoad, load: StepLoad, steps: int, *, accepted: Callable[[int], int]
) -> list[int]:
    """Return the drafts of every step; accepted(n) is the number accepted of n."""
    totals = []
    for _ in range(steps):
        numbers = budget.allot(load)
        totals.append(sum(numbers))
        for number in numbers:
            if number:
                budget.record(number, accepted(number))
    return totals


def test_rejected_drafts_are_suspended_except_for_rare_probes() -> None:
    budget = DraftBudgetByLoad(costs=COSTS, num_draft_tokens=FULL)
    load = StepLoad((FULL,))
    run(budget, load, 300, accepted=lambda n: 0)
    assert budget.is_suspended
    totals = run(budget, load, 3000, accepted=lambda n: 0)
    assert set(totals) == {0, FULL}
    tokens, plain = worth(load, (0,), [0.0] * FULL, COSTS)
    _, probe = worth(load, (FULL,), [0.0] * FULL, COSTS)
    lost = totals.count(FULL) * (probe - plain)
    assert tokens == 1
    assert 0 < lost < 0.02 * len(totals) * plain


@pytest.mark.parametrize("count", [1, 2])
def test_drafts_resume_when_they_are_accepted_again(count: int) -> None:
    budget = DraftBudgetByLoad(costs=COSTS, num_draft_tokens=FULL)
    load = StepLoad((FULL,) * count)
    run(budget, load, 1000, accepted=lambda n: 0)
    assert budget.is_suspended
    totals = run(budget, load, 3000, accepted=lambda n: n)
    assert totals[-1] == FULL * count


def test_probes_take_one_sequence_after_another() -> None:
    budget = DraftBudgetByLoad(costs=COSTS, num_draft_tokens=FULL)
    load = StepLoad((FULL, 2) + (FULL,) * 14)
    probed = []
    for _ in range(1000):
        numbers = budget.allot(load)
        for at, number in enumerate(numbers):
            if number:
                probed.append((at, number))
                budget.record(number, 1)
    assert 5 < len(probed) < 60
    assert {number for _, number in probed} == {FULL}
    assert probed[0][0] == 0
    assert probed[1][0] == 2  # the other one is near its end


def test_when_the_load_falls_the_next_step_drafts() -> None:
    budget = DraftBudgetByLoad(costs=COSTS, num_draft_tokens=FULL)
    half = itertools.cycle([0, 2])
    run(budget, StepLoad((FULL,)), 200, accepted=lambda n: min(n, next(half)))
    run(budget, StepLoad((FULL,) * 16), 500, accepted=lambda n: min(n, next(half)))
    assert budget.is_suspended
    assert sum(budget.allot(StepLoad((FULL,)))) > 0


def test_the_same_history_makes_the_same_choices() -> None:
    def choices() -> list[int]:
        budget = DraftBudgetByLoad(costs=COSTS, num_draft_tokens=FULL)
        found = run(budget, StepLoad((FULL,) * 3), 200, accepted=lambda n: n // 2)
        return found + run(
            budget, StepLoad((FULL,) * 9, context=300), 200, accepted=lambda n: n // 2
        )

    assert choices() == choices()


def test_chances_that_hardly_pay_do_not_oscillate() -> None:
    """A sequence whose drafts gain a few percent drafts in nearly every step."""
    budget = DraftBudgetByLoad(costs=COSTS, num_draft_tokens=FULL)
    pattern = itertools.cycle([0, 1, 0, 2, 0, 0, 1, 0, 0, 3, 0, 0, 1])
    totals = run(budget, StepLoad((FULL,)), 4000, accepted=lambda n: min(n, next(pattern)))
    assert totals.count(0) < 0.05 * len(totals)
