"""Sequential temperature scaling of confidences with known temperatures."""

import pytest
import torch
from torch import Tensor

from draft.calibration import (
    GRID,
    ConfidenceRounds,
    PositionMetrics,
    Scaling,
    area_under_curve,
    calibration_error,
    fit_scaling,
    measure,
    reliability,
)

STEP = 10 ** (1 / 20)


def rounds_of(
    temperatures: tuple[float, ...], *, count: int = 40_000, seed: int = 0
) -> ConfidenceRounds:
    """Accept tokens with probability sigmoid(z_k); the logits are z_k * temperature."""
    generator = torch.Generator().manual_seed(seed)
    calibrated = 1.0 + 1.5 * torch.randn(count, len(temperatures), generator=generator)
    is_accepted = torch.rand(count, len(temperatures), generator=generator) < torch.sigmoid(
        calibrated
    )
    accepted = is_accepted.long().cumprod(dim=1).sum(dim=1)
    return ConfidenceRounds(calibrated * torch.tensor(temperatures), accepted)


def _measured(
    rounds: ConfidenceRounds, scaling: Scaling
) -> tuple[tuple[PositionMetrics, ...], tuple[PositionMetrics, ...]]:
    """Measure the head's confidences without and with scaling."""
    unscaled = Scaling.identity(rounds.block_size)
    return measure(rounds.predicted(unscaled)), measure(rounds.predicted(scaling))


@pytest.mark.parametrize("temperatures", [(1.0, 1.0, 1.0), (2.0, 0.5, 3.0), (0.25, 4.0, 1.0)])
def test_known_temperatures_are_found_within_a_step_of_the_grid(
    temperatures: tuple[float, ...],
) -> None:
    found = fit_scaling(rounds_of(temperatures))
    for temperature, true in zip(found.temperatures, temperatures, strict=True):
        assert true / STEP / 1.01 <= temperature <= true * STEP * 1.01
    assert found.shifts == (0.0, 0.0, 0.0)


def test_a_head_that_is_too_low_throughout_is_shifted() -> None:
    """No temperature changes a logit of 0, where such a head predicts one half."""
    calibrated = rounds_of((1.0, 1.0), count=20_000)
    biased = ConfidenceRounds(calibrated.logits - 1.5, calibrated.num_accepted)
    found = fit_scaling(biased)
    assert found.temperatures == pytest.approx((1.0, 1.0), rel=0.3)
    assert found.shifts == pytest.approx((1.5, 1.5), abs=0.4)
    other = rounds_of((1.0, 1.0), seed=1)
    other = ConfidenceRounds(other.logits - 1.5, other.num_accepted)
    before, after = _measured(other, found)
    assert all(a.ece < b.ece / 4 for a, b in zip(after, before, strict=True))


def test_the_error_falls_to_less_than_half_on_rounds_that_were_not_fitted() -> None:
    temperatures = (3.0, 0.4, 2.5)
    scaling = fit_scaling(rounds_of(temperatures))
    other = rounds_of(temperatures, seed=1)
    before, after = _measured(other, scaling)
    for b, a in zip(before, after, strict=True):
        assert a.ece < b.ece / 2
        assert a.ece < 0.02
        assert a.brier < b.brier


def test_the_order_within_a_position_is_kept() -> None:
    rounds = rounds_of((3.0, 0.4))
    scaling = fit_scaling(rounds)
    scaled = scaling.probabilities(rounds.logits.double())
    for k in range(2):
        assert torch.equal(scaled[:, k].argsort(), rounds.logits[:, k].double().argsort())
    first_before, first_after = (found[0] for found in _measured(rounds, scaling))
    assert first_after.auc == pytest.approx(first_before.auc)


def test_later_positions_are_fitted_given_the_earlier_ones() -> None:
    """Alone, position 1 would be fitted to a product whose first factor is wrong."""
    together = fit_scaling(rounds_of((3.0, 1.0)))
    assert together.temperatures[1] == pytest.approx(1.0, rel=0.13)


def test_of_equal_temperatures_the_first_is_kept() -> None:
    rounds = ConfidenceRounds(torch.zeros(10, 2), torch.tensor([1, 0] * 5))
    found = fit_scaling(rounds)
    assert found.temperatures == (GRID[0], GRID[0])  # one half at any temperature


def test_survival_is_the_product_of_the_probabilities() -> None:
    rounds = ConfidenceRounds(torch.tensor([[0.0, 2.0], [-1.0, 0.0]]), torch.tensor([1, 2]))
    chances = torch.sigmoid(rounds.logits.double() / torch.tensor([1.0, 2.0]))
    expected = torch.stack([chances[:, 0], chances[:, 0] * chances[:, 1]], dim=1)
    torch.testing.assert_close(rounds.predicted(Scaling((1.0, 2.0), (0.0, 0.0))).survival, expected)
    assert rounds.accepted().tolist() == [[True, False], [True, True]]


def test_the_calibration_error_by_hand() -> None:
    predictions = torch.tensor([0.1, 0.15, 0.9, 1.0])
    outcomes = torch.tensor([False, True, True, True])
    # two bins: |0.25 - 1| / 4 and |1.9 - 2| / 4
    assert calibration_error(predictions, outcomes, num_bins=2) == pytest.approx(0.2125)


def test_the_area_under_the_curve_counts_pairs_in_order() -> None:
    predictions = torch.rand(60).mul(10).round() / 10  # with ties
    outcomes = torch.rand(60) < predictions
    assert area_under_curve(predictions, outcomes) == pytest.approx(_pairs(predictions, outcomes))
    assert area_under_curve(predictions, torch.ones(60, dtype=torch.bool)) is None


def _pairs(predictions: Tensor, outcomes: Tensor) -> float:
    accepted, rejected = predictions[outcomes].tolist(), predictions[~outcomes].tolist()
    points = [1.0 if s > f else 0.5 if s == f else 0.0 for s in accepted for f in rejected]
    return sum(points) / len(points)


def test_a_reliability_bin_has_its_mean_prediction_and_accepted_fraction() -> None:
    predictions = torch.tensor([0.1, 0.2, 0.9])
    bins = reliability(predictions, torch.tensor([True, False, True]), num_bins=4)
    assert [(round(b.prediction, 6), b.outcome, b.count) for b in bins] == [
        (0.15, 0.5, 2),
        (0.9, 1.0, 1),
    ]
