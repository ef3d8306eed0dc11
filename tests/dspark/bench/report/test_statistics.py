import numpy as np
import pytest

from dspark.bench.report.statistics import Spread, percentile, ratio, values_of
from dspark.bench.report.verdict import NO_DIFFERENCE, faster_by


def test_a_spread_is_the_median_with_its_range() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0, count=3)
    assert Spread.of([1.0, 2.0]).median == 1.5


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_percentiles_are_numpys(percent: int, size: int) -> None:
    values = np.random.default_rng(size).random(size).tolist()
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        ([1, 2, 3], [4, 5, 6], True),
        ([4, 5, 6], [1, 2, 3], True),
        ([1, 2, 3], [3, 4, 5], False),  # they touch
        ([1, 9, 9], [2, 3, 4], False),  # one lies within the other
        ([1], [2], False),  # single measurements have no range to overlap
        ([1, 1, 1], [2, 2, 2], True),
    ],
)
def test_a_difference_shows_only_where_ranges_are_apart(
    a: list[float], b: list[float], differ: bool
) -> None:
    assert Spread.of(a).differs_from(Spread.of(b)) is differ
    verdict = faster_by("a", Spread.of(a), "b", Spread.of(b))
    assert (NO_DIFFERENCE in verdict) is not differ


def test_the_verdict_names_the_faster_by_the_medians() -> None:
    slow, fast = Spread.of([9.0, 10.0, 11.0]), Spread.of([14.0, 15.0, 16.0])
    assert faster_by("a", fast, "b", slow).startswith("a is 50.0 % faster than b")
    assert faster_by("a", slow, "b", fast).startswith("a is 33.3 % slower than b")
    assert "a single trial" in faster_by("a", Spread.of([1.0]), "b", Spread.of([2.0]))


def test_a_ratio_is_of_medians_and_its_range_is_of_the_trials_as_they_ran() -> None:
    assert ratio([2.0, 6.0, 4.0], [1.0, 2.0, 4.0]) == Spread(2.0, 1.0, 3.0, count=3)


def test_a_ratio_to_nothing_is_nothing() -> None:
    assert ratio([1.0], [0.0]) is None
    assert values_of(None) is None
    assert values_of(Spread.of([2.0])) == {"median": 2.0, "min": 2.0, "max": 2.0}
