"""Sequential temperature scaling: confidences that mean what they say.

A draft's confidence head says, as a logit for each position, how likely the token is to stand
given that those before it do. Position by position, one temperature, and a shift where the head is
too modest or too bold throughout, make the product of these chances agree with how often blocks
really stood so far. Within a position the order of confidences never changes.
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
    """How the logits of each position are read: c_k = sigmoid(logit_k / T_k + b_k)."""

    temperatures: tuple[float, ...]
    shifts: tuple[float, ...]

    @classmethod
    def identity(cls, block_size: int) -> "Scaling":
        """As the head says."""
        return cls((1.0,) * block_size, (0.0,) * block_size)

    def chances(self, logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """That a token stands, given that those before it do."""
        temperatures = logits.new_tensor(self.temperatures)
        return torch.sigmoid(logits / temperatures + logits.new_tensor(self.shifts))


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

    def predicted(self, scaling: Scaling) -> "Predictions":
        """The chance of that, c_1 ... c_k, beside what happened."""
        return Predictions(scaling.chances(self.logits.double()).cumprod(dim=1), self.stood())


@dataclass(frozen=True, slots=True)
class Predictions:
    """Of N rounds: how likely each position was said to stand with all before it, and the truth."""

    survival: Float[Tensor, "N K"]
    stood: Bool[Tensor, "N K"]

    @classmethod
    def joined(cls, parts: Sequence["Predictions"]) -> "Predictions":
        return cls(torch.cat([p.survival for p in parts]), torch.cat([p.stood for p in parts]))

    def __len__(self) -> int:
        return self.survival.shape[0]


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


def fit_scaling(rounds: ConfidenceRounds) -> Scaling:
    """A temperature, and where it helps a shift, for each position, each given those before it.

    Of GRID, without a shift, the temperature with the smallest calibration error of the survival;
    the first of equals. A shift makes the mean survival what was found, at any temperature; it is
    taken only if it lowers the error by more than a tenth, so as not to follow accidents.
    """
    stood = rounds.stood()
    before = torch.ones(len(rounds), dtype=torch.float64)
    chosen: list[tuple[float, float]] = []
    for k in range(rounds.block_size):
        logits, outcomes = rounds.logits[:, k].double(), stood[:, k]
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
    """For each row the b with sum(before * sigmoid(row + b)) = sum(outcomes), by bisection."""
    low = torch.full((len(scaled),), -_LARGEST_SHIFT, dtype=torch.float64)
    high, wanted = -low, outcomes.double().sum()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_low = (before * torch.sigmoid(scaled + middle[:, None])).sum(dim=1) < wanted
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return (low + high) / 2


def measure(predictions: Predictions) -> tuple[PositionMetrics, ...]:
    """Of every position."""
    survival, stood = predictions.survival, predictions.stood
    return tuple(
        PositionMetrics(
            ece=calibration_error(survival[:, k], stood[:, k], num_bins=REPORT_BINS),
            auc=area_under_curve(survival[:, k], stood[:, k]),
            brier=float((survival[:, k] - stood[:, k].double()).square().mean()),
        )
        for k in range(survival.shape[1])
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
