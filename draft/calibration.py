"""Calibrates the confidence head: sequential temperature scaling and its metrics.

The head predicts, as a logit per draft position, that a token is accepted given that all earlier
ones are. A temperature per position, and a shift for a head that is biased throughout, make the
product of these probabilities match the measured acceptance. The order of confidences within a
position never changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# 41 temperatures from 0.1 to 10, evenly spaced in their logarithm; 1 is the 21st.
GRID = tuple(10 ** (i / 20 - 1) for i in range(41))
FIT_BINS = 15
REPORT_BINS = 20
_WORTH_A_SHIFT = 0.9
_LARGEST_SHIFT = 10.0
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Scaling:
    """Converts confidence logits to probabilities: c_k = sigmoid(logit_k / T_k + b_k)."""

    temperatures: tuple[float, ...]
    shifts: tuple[float, ...]

    @classmethod
    def identity(cls, block_size: int) -> "Scaling":
        """Return the scaling that leaves the head's probabilities unchanged."""
        return cls((1.0,) * block_size, (0.0,) * block_size)

    def probabilities(self, logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """Compute P(token k is accepted | all earlier ones are) for each position."""
        temperatures = logits.new_tensor(self.temperatures)
        return torch.sigmoid(logits / temperatures + logits.new_tensor(self.shifts))


@dataclass(frozen=True, slots=True)
class ConfidenceRounds:
    """Holds N rounds that verified every draft token and that no stop cut short."""

    logits: Float[Tensor, "N K"]  # of the confidence head, without scaling
    num_accepted: Int[Tensor, "N"]

    @property
    def block_size(self) -> int:
        return self.logits.shape[1]

    def __len__(self) -> int:
        return self.logits.shape[0]

    def accepted(self) -> Bool[Tensor, "N K"]:
        """Return whether each position, and all before it, was accepted."""
        return torch.arange(self.block_size) < self.num_accepted[:, None]

    def predicted(self, scaling: Scaling) -> "Predictions":
        """Pair the predicted survival c_1 ... c_k of each position with its outcome."""
        survival = scaling.probabilities(self.logits.double()).cumprod(dim=1)
        return Predictions(survival, self.accepted())


@dataclass(frozen=True, slots=True)
class Predictions:
    """Holds predicted survival and outcome of each position, for N rounds.

    Survival is the probability that a position and all before it are accepted.
    """

    survival: Float[Tensor, "N K"]
    accepted: Bool[Tensor, "N K"]

    @classmethod
    def joined(cls, parts: Sequence["Predictions"]) -> "Predictions":
        return cls(torch.cat([p.survival for p in parts]), torch.cat([p.accepted for p in parts]))

    def __len__(self) -> int:
        return self.survival.shape[0]


@dataclass(frozen=True, slots=True)
class PositionMetrics:
    """Measures the predicted survival of one position."""

    ece: float  # expected calibration error, 0 to 1
    auc: float | None  # None when all rounds had the same outcome
    brier: float


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    prediction: float  # mean of the bin
    outcome: float  # fraction that was accepted
    count: int


def fit_scaling(rounds: ConfidenceRounds) -> Scaling:
    """Fit each position's temperature, and shift if it helps, given the positions before it.

    Selects from GRID the temperature with the smallest calibration error of the survival, the
    first of equals. A shift makes the mean survival equal the measured one. It is used only if it
    lowers the error by more than a tenth; smaller gains are noise.
    """
    accepted = rounds.accepted()
    before = torch.ones(len(rounds), dtype=torch.float64)
    chosen: list[tuple[float, float]] = []
    for k in range(rounds.block_size):
        logits, outcomes = rounds.logits[:, k].double(), accepted[:, k]
        scaled = logits / torch.tensor(GRID, dtype=torch.float64)[:, None]  # (G, N)
        plain = _errors(before * torch.sigmoid(scaled), outcomes)
        shifts = _levelling_shifts(before, scaled, outcomes)
        shifted = _errors(before * torch.sigmoid(scaled + shifts[:, None]), outcomes)
        best, best_shifted = plain.index(min(plain)), shifted.index(min(shifted))
        if shifted[best_shifted] < _WORTH_A_SHIFT * plain[best]:
            chosen.append((GRID[best_shifted], float(shifts[best_shifted])))
        else:
            chosen.append((GRID[best], 0.0))
        temperature, shift = chosen[-1]
        before = before * torch.sigmoid(logits / temperature + shift)
    return Scaling(tuple(t for t, _ in chosen), tuple(b for _, b in chosen))


def _errors(survival: Float[Tensor, "G N"], outcomes: Bool[Tensor, "N"]) -> list[float]:
    return [calibration_error(row, outcomes, num_bins=FIT_BINS) for row in survival]


def _levelling_shifts(
    before: Float[Tensor, "N"], scaled: Float[Tensor, "G N"], outcomes: Bool[Tensor, "N"]
) -> Float[Tensor, "G"]:
    """Solve sum(before * sigmoid(row + b)) = sum(outcomes) for each row's b, by bisection."""
    low = torch.full((len(scaled),), -_LARGEST_SHIFT, dtype=torch.float64)
    high, wanted = -low, outcomes.double().sum()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_low = (before * torch.sigmoid(scaled + middle[:, None])).sum(dim=1) < wanted
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return (low + high) / 2


def measure(predictions: Predictions) -> tuple[PositionMetrics, ...]:
    """Compute the metrics of every position."""
    survival, accepted = predictions.survival, predictions.accepted
    return tuple(
        PositionMetrics(
            ece=calibration_error(survival[:, k], accepted[:, k], num_bins=REPORT_BINS),
            auc=area_under_curve(survival[:, k], accepted[:, k]),
            brier=float((survival[:, k] - accepted[:, k].double()).square().mean()),
        )
        for k in range(survival.shape[1])
    )


def calibration_error(
    predictions: Float[Tensor, "N"], outcomes: Bool[Tensor, "N"], *, num_bins: int
) -> float:
    """Sum (n_b / n) * |mean prediction - accepted fraction| over bins of equal width."""
    gaps = torch.zeros(num_bins, dtype=torch.float64)
    gaps.index_add_(0, _bins(predictions, num_bins), predictions.double() - outcomes.double())
    return float(gaps.abs().sum()) / len(predictions)


def area_under_curve(predictions: Float[Tensor, "N"], outcomes: Bool[Tensor, "N"]) -> float | None:
    """Compute the ROC AUC; ties count half. None if all outcomes are the same."""
    accepted, rejected = predictions[outcomes], predictions[~outcomes].sort().values
    if len(accepted) == 0 or len(rejected) == 0:
        return None
    below = torch.searchsorted(rejected, accepted)
    below = below + torch.searchsorted(rejected, accepted, right=True)
    return float(below.double().mean()) / (2 * len(rejected))


def reliability(
    predictions: Float[Tensor, "N"], outcomes: Bool[Tensor, "N"], *, num_bins: int = REPORT_BINS
) -> list[ReliabilityBin]:
    """Compare prediction and outcome bin by bin; empty bins are left out."""
    bins = _bins(predictions, num_bins)
    found = []
    for index in range(num_bins):
        inside = bins == index
        count = int(inside.sum())
        if count:
            prediction = float(predictions[inside].double().mean())
            outcome = float(outcomes[inside].double().mean())
            found.append(ReliabilityBin(prediction, outcome, count))
    return found


def _bins(predictions: Float[Tensor, "N"], num_bins: int) -> Int[Tensor, "N"]:
    return (predictions * num_bins).long().clamp(max=num_bins - 1)
