"""Sequential temperature scaling on confidences whose truth is known."""

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


def rounds_of(truth: tuple[float, ...], *, count: int = 40_000, seed: int = 0) -> ConfidenceRounds:
    """Tokens stand with chance sigmoid(z_k); the head says z_k times the true temperature."""
    generator = torch.Generator().manual_seed(seed)
    honest = 1.0 + 1.5 * torch.randn(count, len(truth), generator=generator)
    stands = torch.rand(count, len(truth), generator=generator) < torch.sigmoid(honest)
    accepted = stands.long().cumprod(dim=1).sum(dim=1)
    return ConfidenceRounds(honest * torch.tensor(truth), accepted)


def _judged(
    rounds: ConfidenceRounds, scaling: Scaling
) -> tuple[tuple[PositionMetrics, ...], tuple[PositionMetrics, ...]]:
    """As the head says it, and scaled."""
    as_said = Scaling.identity(rounds.block_size)
    return measure(rounds.predicted(as_said)), measure(rounds.predicted(scaling))


@pytest.mark.parametrize("truth", [(1.0, 1.0, 1.0), (2.0, 0.5, 3.0), (0.25, 4.0, 1.0)])
def test_known_temperatures_are_found_within_a_step_of_the_grid(truth: tuple[float, ...]) -> None:
    found = fit_scaling(rounds_of(truth))
    for temperature, true in zip(found.temperatures, truth, strict=True):
        assert true / STEP / 1.01 <= temperature <= true * STEP * 1.01
    assert found.shifts == (0.0, 0.0, 0.0)


def test_a_head_that_is_too_modest_throughout_is_shifted() -> None:
    """No temperature moves a logit of 0, which is where such a head says half."""
    honest = rounds_of((1.0, 1.0), count=20_000)
    modest = ConfidenceRounds(honest.logits - 1.5, honest.num_accepted)
    found = fit_scaling(modest)
    assert found.temperatures == pytest.approx((1.0, 1.0), rel=0.3)
    assert found.shifts == pytest.approx((1.5, 1.5), abs=0.4)
    other = rounds_of((1.0, 1.0), seed=1)
    other = ConfidenceRounds(other.logits - 1.5, other.num_accepted)
    before, after = _judged(other, found)
    assert all(a.ece < b.ece / 4 for a, b in zip(after, before, strict=True))


def test_the_error_falls_to_less_than_half_on_rounds_that_were_not_fitted() -> None:
    truth = (3.0, 0.4, 2.5)
    scaling = fit_scaling(rounds_of(truth))
    other = rounds_of(truth, seed=1)
    before, after = _judged(other, scaling)
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
    first_before, first_after = (found[0] for found in _judged(rounds, scaling))
    assert first_after.auc == pytest.approx(first_before.auc)


def test_later_positions_are_fitted_given_the_earlier_ones() -> None:
    """Alone, position 1 would be fitted to a product whose first factor is wrong."""
    together = fit_scaling(rounds_of((3.0, 1.0)))
    assert together.temperatures[1] == pytest.approx(1.0, rel=0.13)


def test_of_equal_temperatures_the_first_is_kept() -> None:
    rounds = ConfidenceRounds(torch.zeros(10, 2), torch.tensor([1, 0] * 5))
    found = fit_scaling(rounds)
    assert found.temperatures == (GRID[0], GRID[0])  # half is half at any temperature


def test_survival_is_the_product_of_chances_and_stood_its_outcome() -> None:
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
    stood, fell = predictions[outcomes].tolist(), predictions[~outcomes].tolist()
    points = [1.0 if s > f else 0.5 if s == f else 0.0 for s in stood for f in fell]
    return sum(points) / len(points)


def test_a_reliability_bin_is_its_mean_prediction_and_its_share_that_stood() -> None:
    predictions = torch.tensor([0.1, 0.2, 0.9])
    bins = reliability(predictions, torch.tensor([True, False, True]), num_bins=4)
    assert [(round(b.prediction, 6), b.outcome, b.count) for b in bins] == [
        (0.15, 0.5, 2),
        (0.9, 1.0, 1),
    ]
