"""Folds of the cross-validation."""

import pytest

from dspark.bench.draft_quality.calibration import NUM_FOLDS, fold_of_each


def test_prompts_of_a_category_are_assigned_round_robin() -> None:
    assert fold_of_each(["a"] * 8) == [0, 1, 2, 3] * 2


@pytest.mark.parametrize("num_categories", [2, 4, 5])
def test_every_category_is_in_every_fold(num_categories: int) -> None:
    categories = [str(i % num_categories) for i in range(num_categories * 8)]
    folds = fold_of_each(categories)
    for fold in range(NUM_FOLDS):
        judging = [c for c, own in zip(categories, folds, strict=True) if own == fold]
        assert sorted(judging) == sorted([*set(categories)] * 2)


def test_few_prompts_of_several_kinds_are_spread_over_the_folds() -> None:
    categories = ["chat", "code", "math", "tale"] * 3
    folds = fold_of_each(categories)
    for fold in range(NUM_FOLDS):
        judging = [c for c, own in zip(categories, folds, strict=True) if own == fold]
        assert len(judging) == len(set(judging)) == 3
