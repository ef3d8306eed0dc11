"""Which packed row of logits belongs to which sequence, and to which place along its draft."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from engine.api import Request
from engine.arrays import IntArray
from engine.scheduler.plan import ScheduledSequence


@dataclass(frozen=True, slots=True)
class Window:
    """One sampling share's rows: row first + k decides the token behind draft token k - 1."""

    scheduled: ScheduledSequence
    index: int  # of the share among the sampling ones
    first: int  # its first packed row

    @property
    def num_rows(self) -> int:
        return self.scheduled.num_drafts + 1

    @property
    def rows(self) -> IntArray:
        return np.arange(self.first, self.first + self.num_rows)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The windows of a step, one behind the other in the packed logits."""

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

    def where(self, asks: Callable[[Request], object]) -> list[Window]:
        """The windows of the requests that ask for something."""
        return [window for window in self.windows if asks(window.scheduled.seq.request)]
