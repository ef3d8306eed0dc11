"""The choice of drafts maximises expected tokens per second."""

import itertools

import numpy as np
import pytest

from engine.draft_length.cost_model import Curve, FloatArray, StepCosts
from engine.proposers.choice import Choice, CostTable, Objective, allocate, choose, choose_at


def random_survivals(rng: np.random.Generator, count: int, width: int) -> FloatArray:
    return np.cumprod(rng.uniform(0.05, 1.0, (count, width)), axis=1)


def random_table(rng: np.random.Generator, rows: int, drafting: int) -> CostTable:
    """Steps with jumps: not unimodal."""
    passes = 1 + np.cumsum(rng.exponential(0.3, rows + 1) * (rng.random(rows + 1) < 0.4))
    return CostTable(
        passes, np.cumsum(rng.exponential(0.2, drafting + 1)) * (np.arange(drafting + 1) > 0)
    )


def best_by_brute_force(
    draft: FloatArray, lookup: FloatArray, table: CostTable, base: float
) -> float:
    """Try every source and every number of rows for every sequence."""
    count, width = draft.shape
    best = 0.0
    for sources in itertools.product((False, True), repeat=count):
        chances = np.where(np.array(sources)[:, None], draft, lookup)
        for numbers in itertools.product(range(width + 1), repeat=count):
            if any(uses and n == 0 for uses, n in zip(sources, numbers, strict=True)):
                continue
            tokens = base + sum(chances[i, :n].sum() for i, n in enumerate(numbers))
            seconds = table.passes[sum(numbers)] + table.drafts[sum(sources)]
            best = max(best, tokens / seconds)
    return best


def test_lookups_alone_are_chosen_as_brute_force_chooses() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        count, width = int(rng.integers(1, 4)), 3
        lookup = random_survivals(rng, count, width) * (rng.random((count, 1)) < 0.7)
        table = random_table(rng, count * width, count)
        nothing = np.zeros_like(lookup)
        found = choose(nothing, lookup, table, Objective(count))
        assert found.rate == pytest.approx(best_by_brute_force(nothing, lookup, table, count))
        numbers = allocate(lookup, found.num_rows)
        assert numbers.sum() == found.num_rows


def test_one_sequence_gets_the_best_of_plain_lookup_and_draft() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        draft, lookup = random_survivals(rng, 1, 4), random_survivals(rng, 1, 4)
        table = random_table(rng, 4, 1)
        found = choose(draft, lookup, table, Objective(1))
        assert found.rate == pytest.approx(best_by_brute_force(draft, lookup, table, 1))


def test_mixed_steps_are_close_to_brute_force() -> None:
    rng = np.random.default_rng(2)
    ratios = []
    for _ in range(150):
        count, width = int(rng.integers(2, 4)), 3
        draft = random_survivals(rng, count, width)
        lookup = random_survivals(rng, count, width) * (rng.random((count, 1)) < 0.5)
        table = random_table(rng, count * width, count)
        found = choose(draft, lookup, table, Objective(count))
        ratios.append(found.rate / best_by_brute_force(draft, lookup, table, count))
    assert max(ratios) <= 1 + 1e-9
    assert np.mean(ratios) > 0.98
    assert np.quantile(ratios, 0.05) > 0.9


def algorithm_1(chances: FloatArray, passes: FloatArray) -> float:
    """The paper's causal greedy: admit the likeliest until the rate falls."""
    count = len(chances)
    tokens, best = float(count), count / passes[0]
    for rows, chance in enumerate(np.sort(chances, axis=None)[::-1], 1):
        tokens += chance
        if tokens / passes[rows] <= best:
            return float(best)
        best = tokens / passes[rows]
    return float(best)


@pytest.mark.parametrize("count", [256, 1024])
def test_a_jump_in_the_costs_of_many_requests_stops_the_papers_greedy_but_not_the_choice(
    count: int,
) -> None:
    rng = np.random.default_rng(3)
    chances = np.cumprod(rng.beta(4, 2, (count, 5)), axis=1)
    # A GPU's pass costs a step for every 256 rows.
    rows = count + np.arange(count * 5 + 1)
    passes = 0.010 + 0.002 * np.ceil(rows / 256)
    table = CostTable(passes, np.zeros(count + 1))
    found = choose(np.zeros_like(chances), chances, table, Objective(count))
    rates = [
        (count + np.sort(chances, axis=None)[::-1][:k].sum()) / passes[k]
        for k in range(0, count * 5 + 1, max(1, count // 64))
    ]
    assert found.rate > max(rates) * (1 - 1e-9)
    assert found.rate > algorithm_1(chances, passes) * (1 - 1e-9)
    assert found.rate > 1.3 * algorithm_1(chances, passes) or count > 256
    assert found.num_rows == count * 5 or passes[found.num_rows + 1] > passes[found.num_rows]


def test_where_costs_rise_evenly_the_papers_greedy_is_the_same() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        chances = random_survivals(rng, 3, 3)
        passes = np.linspace(1.0, 1.0 + rng.uniform(0.5, 4), 10)
        table = CostTable(passes, np.zeros(4))
        found = choose(np.zeros_like(chances), chances, table, Objective(3))
        assert found.rate == pytest.approx(algorithm_1(chances, passes))


def test_of_equal_chances_smaller_positions_come_first() -> None:
    chances = np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 0.0]])
    assert [list(allocate(chances, k)) for k in range(6)] == [
        [0, 0],
        [1, 0],
        [1, 1],
        [2, 1],
        [2, 2],
        [3, 2],
    ]


def test_no_more_rows_are_given_out_than_there_are_drafts() -> None:
    assert list(allocate(np.array([[0.5, 0.0], [0.0, 0.0]]), 9)) == [1, 0]


def test_later_chances_never_change_whether_a_token_gets_a_row() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        chances = random_survivals(rng, 4, 4)
        num_rows = int(rng.integers(0, 17))
        before = allocate(chances, num_rows)
        r, j = int(rng.integers(4)), int(rng.integers(1, 4))
        redrawn = chances.copy()
        redrawn[r, j:] = chances[r, j - 1] * np.cumprod(rng.uniform(0, 1, 4 - j))
        after = allocate(redrawn, num_rows)
        assert (before[r] >= j) == (after[r] >= j)


def test_plain_decoding_must_win_clearly() -> None:
    table = CostTable(np.array([1.0, 1.5]), np.zeros(2))
    lookup, nothing = np.array([[0.49]]), np.zeros((1, 1))

    def rows(patience: float) -> int:
        return choose(nothing, lookup, table, Objective(1, patience)).num_rows

    assert (rows(0.0), rows(0.03)) == (0, 1)


def test_time_beside_a_prompt_chunk_must_earn_what_it_earns_elsewhere() -> None:
    table = CostTable(np.array([10.0, 10.5, 11.0]), np.zeros(2))
    lookup, nothing = np.array([[0.9, 0.3]]), np.zeros((1, 2))

    def choice(earned: float) -> Choice:
        return choose(nothing, lookup, table, Objective(1, earned=earned))

    assert [choice(earned).num_rows for earned in (0.5, 1.0, 2.0)] == [2, 1, 0]


def test_cost_tables_are_those_of_single_predictions() -> None:
    costs = StepCosts(
        passes=Curve((1, 3, 9), (1.0, 2.0, 5.0)),
        drafts=Curve((1, 4), (0.5, 1.0)),
        context_per_sequence=0.01,
        context_per_row=0.002,
        context_per_draft=0.003,
    )
    for captured in ((), (2, 4)):
        each = StepCosts(
            passes=costs.passes,
            drafts=costs.drafts,
            context_per_sequence=0.01,
            context_per_row=0.002,
            context_per_draft=0.003,
            capture_sizes=captured,
            width=3,
        )
        for count in (1, 3, 5):
            table = each.pass_table(num_sequences=count, num_rows=count, most_more=12, context=7)
            assert list(table) == pytest.approx(
                [
                    each.pass_seconds(num_sequences=count, num_rows=count + k, context=7)
                    for k in range(13)
                ]
            )


def gpu_table(count: int, width: int) -> CostTable:
    """A pass costs a step for every 256 rows, and a draft pass one for every 64 sequences."""
    rows = count + np.arange(count * width + 1)
    drafting = np.arange(count + 1)
    return CostTable(
        0.010 + 0.0015 * np.ceil(rows / 256),
        np.where(drafting > 0, 0.001 + 0.0004 * np.ceil(drafting / 64), 0.0),
    )


@pytest.mark.parametrize("count", [256, 1024])
def test_many_requests_that_differ_decode_faster_than_by_any_simple_rule(count: int) -> None:
    """Half are easy and half are hard; a third have a lookup."""
    rng = np.random.default_rng(6)
    width, table = 5, gpu_table(count, 5)
    is_easy = rng.random((count, 1)) < 0.5
    draft = np.cumprod(
        np.where(is_easy, rng.beta(9, 2, (count, width)), rng.beta(2, 5, (count, width))), axis=1
    )
    lookup = random_survivals(rng, count, width) * (rng.random((count, 1)) < 0.33)
    found = choose(draft, lookup, table, Objective(count))

    def rate(chances: FloatArray, num_drafting: int) -> float:
        likeliest = np.sort(chances, axis=None)[::-1]
        tokens = count + np.concatenate([[0.0], np.cumsum(likeliest)])
        return float((tokens / (table.passes + table.drafts[num_drafting])).max())

    nothing = np.zeros_like(draft)
    better = np.where(draft.sum(axis=1, keepdims=True) >= lookup.sum(axis=1, keepdims=True), 1, 0)
    rules = {
        "plain": rate(nothing, 0),
        "lookups alone": rate(lookup, 0),
        "all draft": rate(draft, count),
        "the better of both": rate(np.where(better, draft, lookup), int(better.sum())),
        "easy ones draft": rate(np.where(is_easy, draft, lookup), int(is_easy.sum())),
        "whole blocks": (count + draft.sum()) / (table.passes[-1] + table.drafts[-1]),
    }
    assert all(found.rate > 0.999 * other for other in rules.values()), (found.rate, rules)
    assert found.rate > 1.1 * rules["whole blocks"]


@pytest.mark.parametrize("count", [16, 256, 1024])
def test_the_price_of_an_earlier_step_chooses_nearly_as_well_as_a_new_search(count: int) -> None:
    rng = np.random.default_rng(7)
    width, table = 5, gpu_table(count, 5)
    losses = []
    for _ in range(20):
        draft = random_survivals(rng, count, width)
        lookup = random_survivals(rng, count, width) * (rng.random((count, 1)) < 0.4)
        before = choose(draft, lookup, table, Objective(count))
        now = draft * rng.uniform(0.9, 1.0, (count, 1))
        other_lookup = random_survivals(rng, count, width) * (rng.random((count, 1)) < 0.4)
        price = np.inf if before.price is None else before.price
        found = choose_at(price, before.rate, now, other_lookup, table, Objective(count))
        best = choose(now, other_lookup, table, Objective(count))
        losses.append(1 - found.rate / best.rate)
    assert np.mean(losses) < 0.01
    assert max(losses) < 0.03
