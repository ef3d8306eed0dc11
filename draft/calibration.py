"""Sequential temperature scaling: confidences that mean what they say.

A draft's confidence head says, as a logit for each position, how likely the token is to stand
given that those before it do. Position by position, one temperature makes the product of these
chances agree with how often blocks really stood so far. Within a position the order of confidences
never changes.
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


@dataclass(frozen=True, slots=True)
class ConfidenceRounds:
    """N rounds in which every draft token was verified, and which no stop cut short."""

    logits: Float[Tensor, "N K"]  # as the head gave them
    num_accepted: Int[Tensor, "N"]

    @property
    def block_size(self) -> int:
        return self.logits.shape[1]

    def __len__(self) -> int:
        return self.logits.shape[0]

    def stood(self) -> Bool[Tensor, "N K"]:
        """Whether the block stood up to and with each position."""
        return torch.arange(self.block_size) < self.num_accepted[:, None]

    def survival(self, temperatures: Sequence[float]) -> Float[Tensor, "N K"]:
        """The predicted chance of that: c_1 ... c_k with c_i = sigmoid(logit_i / T_i)."""
        scaled = self.logits.double() / torch.tensor(temperatures, dtype=torch.float64)
        return torch.sigmoid(scaled).cumprod(dim=1)


@dataclass(frozen=True, slots=True)
class PositionMetrics:
    """How good the predicted survival of one position is."""

    ece: float  # expected calibration error, 0 to 1
    auc: float | None  # None when all rounds had the same outcome
    brier: float


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    prediction: float  # mean of the bin
    outcome: float  # share that stood
    count: int


def fit_temperatures(rounds: ConfidenceRounds) -> tuple[float, ...]:
    """One temperature for each position, left to right, each given those before it.

    Of GRID the one with the smallest calibration error of the survival; the first of equals.
    """
    stood = rounds.stood()
    before = torch.ones(len(rounds), dtype=torch.float64)
    temperatures: list[float] = []
    for k in range(rounds.block_size):
        logits = rounds.logits[:, k].double()
        errors = [
            calibration_error(before * torch.sigmoid(logits / t), stood[:, k], num_bins=FIT_BINS)
            for t in GRID
        ]
        temperatures.append(GRID[errors.index(min(errors))])
        before = before * torch.sigmoid(logits / temperatures[-1])
    return tuple(temperatures)


def measure(rounds: ConfidenceRounds, temperatures: Sequence[float]) -> tuple[PositionMetrics, ...]:
    """Of every position, on these rounds."""
    survival, stood = rounds.survival(temperatures), rounds.stood()
    return tuple(
        PositionMetrics(
            ece=calibration_error(survival[:, k], stood[:, k], num_bins=REPORT_BINS),
            auc=area_under_curve(survival[:, k], stood[:, k]),
            brier=float((survival[:, k] - stood[:, k].double()).square().mean()),
        )
        for k in range(rounds.block_size)
    )


def calibration_error(
    predictions: Float[Tensor, "N"], outcomes: Bool[Tensor, "N"], *, num_bins: int
) -> float:
    """Sum over bins of (n_b / n) * |mean prediction - share that stood|, in bins of equal width."""
    gaps = torch.zeros(num_bins, dtype=torch.float64)
    gaps.index_add_(0, _bins(predictions, num_bins), predictions.double() - outcomes.double())
    return float(gaps.abs().sum()) / len(predictions)


def area_under_curve(predictions: Float[Tensor, "N"], outcomes: Bool[Tensor, "N"]) -> float | None:
    """The chance that a round that stood was predicted above one that did not; ties count half."""
    stood, fell = predictions[outcomes], predictions[~outcomes].sort().values
    if len(stood) == 0 or len(fell) == 0:
        return None
    below = torch.searchsorted(fell, stood) + torch.searchsorted(fell, stood, right=True)
    return float(below.double().mean()) / (2 * len(fell))


def reliability(
    predictions: Float[Tensor, "N"], outcomes: Bool[Tensor, "N"], *, num_bins: int = REPORT_BINS
) -> list[ReliabilityBin]:
    """Prediction against outcome, bin by bin; empty bins are left out."""
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
