"""Computes medians, ranges, ratios and percentiles of measurements."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MOMENTS = ("mean", "p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of several measurements."""

    median: float
    low: float
    high: float
    count: int  # measurements

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values), len(values))

    def overlaps(self, other: "Spread") -> bool:
        """Whether the ranges overlap, so that the medians show no difference."""
        return self.low <= other.high and other.low <= self.high

    def differs_from(self, other: "Spread") -> bool:
        """Whether the ranges are disjoint; single measurements never differ."""
        return min(self.count, other.count) > 1 and not self.overlaps(other)

    def values(self) -> dict[str, float]:
        return {"median": self.median, "min": self.low, "max": self.high}


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread | None:
    """Return the ratio of the medians, with the range of the ratios trial by trial.

    The ratio of the medians may lie outside that range if the machine drifts. Returns None if a
    denominator is 0.
    """
    if not all(denominators):
        return None
    pairs = [a / b for a, b in zip(numerators, denominators, strict=True)]
    of_medians = statistics.median(numerators) / statistics.median(denominators)
    return Spread(of_medians, min(pairs), max(pairs), len(pairs))


def values_of(spread: Spread | None) -> dict[str, float] | None:
    """Return the JSON values of a spread, or None."""
    return None if spread is None else spread.values()


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolate linearly between the two nearest ranks, like numpy; percent from 0 to 100."""
    assert values, "a percentile of nothing"
    assert 0 <= percent <= 100, percent
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    below, above = math.floor(rank), math.ceil(rank)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def latency_ms(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return the moments of `seconds` in ms, as NAME_ms_MOMENT; zeros without values."""
    ms = [1000 * value for value in seconds] or [0.0]
    moments = {"mean": statistics.mean(ms)}
    moments |= {moment: percentile(ms, float(moment[1:])) for moment in MOMENTS[1:]}
    return {f"{name}_ms_{moment}": value for moment, value in moments.items()}
