"""Maps packed rows of logits to sequences and to positions along their drafts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from engine.api import Request
from engine.arrays import IntArray
from engine.scheduler.plan import ScheduledSequence


@dataclass(frozen=True, slots=True)
class Window:
    """One sampling sequence's rows: row first + k decides the token after draft token k - 1."""

    scheduled: ScheduledSequence
    index: int  # of the sequence among the sampling ones
    first: int  # its first packed row

    @property
    def num_rows(self) -> int:
        return self.scheduled.num_drafts + 1

    @property
    def rows(self) -> IntArray:
        return np.arange(self.first, self.first + self.num_rows)


@dataclass(frozen=True, slots=True)
class LogitRows:
    """The windows of a step, consecutive in the packed logits."""

    windows: tuple[Window, ...]

    @classmethod
    def of(cls, sampling: Sequence[ScheduledSequence]) -> Self:
        windows, first = [], 0
        for index, scheduled in enumerate(sampling):
            windows.append(Window(scheduled, index, first))
            first += scheduled.num_drafts + 1
        return cls(tuple(windows))

    @property
    def num_rows(self) -> int:
        return sum(window.num_rows for window in self.windows)

    def where(self, has_option: Callable[[Request], object]) -> list[Window]:
        """Select the windows of the requests that have an option."""
        return [window for window in self.windows if has_option(window.scheduled.seq.request)]


def join_rows(spans: Iterable[tuple[int, int]]) -> tuple[slice, ...]:
    """Join ascending spans (first row, rows) into as few slices as possible.

    A slice of the logits is a view, so a rule that takes slices copies no row.
    """
    joined: list[slice] = []
    for first, count in spans:
        if joined and joined[-1].stop == first:
            joined[-1] = slice(joined[-1].start, first + count)
        else:
            joined.append(slice(first, first + count))
    return tuple(joined)
