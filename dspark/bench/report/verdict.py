"""Describes the difference between two measured speeds."""

from dspark.bench.report.statistics import Spread

NO_DIFFERENCE = "no measurable difference"


def faster_by(name: str, speed: Spread, other: str, other_speed: Spread) -> str:
    """Describe which is faster and by how much, or that the ranges overlap."""
    if not speed.differs_from(other_speed):
        alone = min(speed.count, other_speed.count) == 1
        reason = "a single trial has no range" if alone else "the ranges of the trials overlap"
        return f"{name} against {other}: {NO_DIFFERENCE} ({reason})"
    percent = 100 * (speed.median / other_speed.median - 1)
    direction = "faster" if percent > 0 else "slower"
    size = f"{abs(percent):.1f} % {direction}"
    return f"{name} is {size} than {other}, by the medians of output tokens/s"
