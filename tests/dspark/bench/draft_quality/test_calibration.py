"""Folds of the cross-validation."""

from pathlib import Path

import pytest
import torch

from draft.calibration import GRID, PositionMetrics, Predictions
from draft.checkpoint.calibration_file import Calibration
from dspark.bench.draft_quality.calibration import NUM_FOLDS, CalibrationOutcome, fold_of_each


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


def test_a_temperature_at_the_edge_of_the_grid_is_reported() -> None:
    calibration = Calibration(
        temperatures=(1.0, GRID[-1], GRID[0]),
        shifts=(0.0,) * 3,
        dataset="mine",
        num_samples=700,
        ece_before=(0.1,) * 3,
        ece_after=(0.1,) * 3,
    )
    nothing = Predictions(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.bool))
    metrics = (PositionMetrics(ece=0.1, auc=None, brier=0.2),) * 3
    outcome = CalibrationOutcome(
        calibration, nothing, nothing, metrics, metrics, Path("calibration.json"), 9
    )
    edges = [line for line in outcome.lines() if line.startswith("position ")][1:]
    assert edges == [
        "position 1: temperature 10 is the largest that is tried; the confidence head fits this "
        "traffic badly there",
        "position 2: temperature 0.1 is the smallest that is tried; the confidence head fits this "
        "traffic badly there",
    ]
