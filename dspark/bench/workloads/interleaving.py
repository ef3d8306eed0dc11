"""Orders the arms of a comparison so that drift of the machine affects all of them alike."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Report = Callable[[str], None]  # called with a label when a piece of work begins

WARM_UP_TOKENS = 16  # per request

T = TypeVar("T")


def alternated(arms: Sequence[T], turn: int) -> list[T]:
    """Return the arms in order in even turns, and reversed in odd ones: A B, B A, A B, ..."""
    return list(arms) if turn % 2 == 0 else list(reversed(arms))


def warm_up_width(concurrency: int) -> int:
    """Return the number of warm-up requests: as many as run at once, but at least two."""
    return max(2, concurrency)


def num_reports(*, num_arms: int, trials: int) -> int:
    """Return how often a comparison reports: once per warm-up and once per trial of an arm."""
    return num_arms * (1 + trials)
