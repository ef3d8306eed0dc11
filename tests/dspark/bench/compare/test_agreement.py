from collections.abc import Sequence

import pytest

from dspark.bench.compare.agreement import compare_texts
from dspark.bench.compare.identity import first_difference
from tests.support.bench.runs import run, trial


def texts(*each: Sequence[int]):  # type: ignore[no-untyped-def]
    return trial([run([1.0], [len(ids)], ids=ids, prompt=(7,)) for ids in each])


def no_gap(ids: Sequence[int]) -> float:
    raise AssertionError(f"unexpected gap after {ids}")


def test_equal_texts_agree_in_every_trial_of_every_arm() -> None:
    same = [texts([1, 2], [3]) for _ in range(4)]
    found = compare_texts({"a": same[:2], "b": same[2:]}, gap=no_gap, is_guaranteed=True)
    assert found.is_exact
    assert found.holds
    assert found.num_texts == 6  # all but the first trial of the first arm
    assert found.lines() == ["token ids: identical in all 6 texts"]


def test_a_real_difference_is_named_and_does_not_hold() -> None:
    prefixes: list[list[int]] = []

    def gap(ids: Sequence[int]) -> float:
        prefixes.append(list(ids))
        return 0.5

    trials = {"a": [texts([1, 2, 3], [9])], "b": [texts([1, 5, 3], [9])]}
    found = compare_texts(trials, gap=gap, is_guaranteed=True)
    assert not found.holds
    assert prefixes == [[7, 1]]  # the prompt and the common output
    (one,) = found.divergences
    assert (one.prompt, one.arm, one.difference.position) == (0, "b", 1)
    assert found.lines()[0] == "token ids: DIFFERENT, which violates the guarantee"
    assert "expected id 2, found id 5, top-2 gap 5.0e-01" in found.lines()[1]


def test_a_tie_is_no_failure() -> None:
    trials = {"a": [texts([1, 2])], "b": [texts([1, 3])]}
    found = compare_texts(trials, gap=lambda ids: 1e-5, is_guaranteed=True)
    assert found.holds
    assert not found.is_exact
    assert found.lines()[0] == "token ids: identical except at ties, where either token is right"


def test_lower_precision_reports_a_difference_without_failing() -> None:
    trials = {"a": [texts([1, 2])], "b": [texts([1, 3])]}
    found = compare_texts(trials, gap=lambda ids: 1.0, is_guaranteed=False)
    assert found.holds
    assert "not identical" in found.lines()[0]


def test_an_arm_must_agree_with_itself_too() -> None:
    trials = {"a": [texts([1, 2]), texts([1, 2]), texts([4, 2])], "b": [texts([1, 2])]}
    found = compare_texts(trials, gap=lambda ids: 1.0, is_guaranteed=True)
    assert [one.arm for one in found.divergences] == ["a"]
    assert not found.holds


def test_a_divergence_counts_once_over_all_trials() -> None:
    trials = {"a": [texts([1])], "b": [texts([2]), texts([2])]}
    assert len(compare_texts(trials, gap=lambda ids: 1.0, is_guaranteed=True).divergences) == 1


@pytest.mark.parametrize(
    ("a", "b", "position"), [([1, 2], [1, 3], 1), ([1], [1, 3], 1), ([1, 2], [], 0)]
)
def test_an_end_differs_from_a_token(a: list[int], b: list[int], position: int) -> None:
    difference = first_difference([], a, b, gap=lambda ids: 1.0)
    assert difference is not None
    assert difference.position == position
    found = compare_texts(
        {"a": [texts(a)], "b": [texts(b)]}, gap=lambda ids: 1.0, is_guaranteed=True
    )
    assert ("the end" in found.lines()[1]) is (position == min(len(a), len(b)))
