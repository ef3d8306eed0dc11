"""Predicts the seconds of target and draft passes from measured costs.

The model reads no clock, so a choice made from its costs is reproducible.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from engine.arrays import IntArray

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size: linear between two measured sizes, with the last slope beyond them."""

    sizes: tuple[int, ...]  # ascending
    seconds: tuple[float, ...]  # never falling

    @classmethod
    def through(cls, measured: Mapping[int, float]) -> Self:
        """Interpolate measured points, so that no size takes longer than a larger one.

        Where a smaller size was slower, other work disturbed its measurement.
        """
        assert measured, "a curve needs at least one point"
        sizes = tuple(sorted(measured))
        seconds = [measured[size] for size in sizes]
        for i in range(len(sizes) - 2, -1, -1):
            seconds[i] = min(seconds[i], seconds[i + 1])
        return cls(sizes, tuple(seconds))

    def at(self, size: int) -> float:
        """Return the seconds of a size; below the first size those of the first."""
        sizes, seconds = self.sizes, self.seconds
        if size <= sizes[0] or len(sizes) == 1:
            return seconds[0]
        right = min(bisect_right(sizes, size), len(sizes) - 1)
        slope = (seconds[right] - seconds[right - 1]) / (sizes[right] - sizes[right - 1])
        return seconds[right] + slope * (size - sizes[right])

    def over(self, sizes: IntArray) -> FloatArray:
        """Return the seconds of each size, as `at` does."""
        found: FloatArray = np.interp(sizes, self.sizes, self.seconds)
        if len(self.sizes) > 1:
            last = self.sizes[-1]
            slope = (self.seconds[-1] - self.seconds[-2]) / (last - self.sizes[-2])
            found += slope * np.maximum(sizes - last, 0)
        return found


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: the target's pass over its rows, and a draft pass if there is one.

    Both include the host's work. The context is the tokens that a sequence attends to; a pass
    reads it once for each sequence and computes with it for each row. Where passes are replayed
    (see engine.cuda_graphs), a batch costs as much as its capture size, and a step without drafts
    as much as a capture of single rows.
    """

    passes: Curve  # by rows
    drafts: Curve  # by sequences
    context_per_sequence: float = 0.0  # of a target pass, per token of a sequence's context
    context_per_row: float = 0.0  # of a target pass, per row and token of context before it
    context_per_draft: float = 0.0  # of a draft pass, per token of a sequence's context
    capture_sizes: tuple[int, ...] = ()  # of sequences, ascending; empty: nothing is replayed
    width: int = 1  # rows of a replayed window
    singles: Curve | None = None  # replayed passes over single rows, by sequences; None: as passes

    def pass_seconds(self, *, num_sequences: int, num_rows: int, context: int) -> float:
        """Predict a target pass. context: tokens, the mean over the sequences."""
        size = self._replayed(num_sequences)
        drafts_nothing = num_rows <= num_sequences
        width = 1 if drafts_nothing else self.width
        is_replayed = num_rows <= size * width
        if is_replayed:
            num_sequences, num_rows = size, size * width
        per_token = num_sequences * self.context_per_sequence + num_rows * self.context_per_row
        if is_replayed and drafts_nothing and self.singles is not None:
            return self.singles.at(size) + per_token * context
        return self.passes.at(num_rows) + per_token * context

    def pass_table(
        self, *, num_sequences: int, num_rows: int, most_more: int, context: int
    ) -> FloatArray:
        """Predict passes over num_rows + 0, 1, ..., most_more rows, [most_more + 1].

        num_rows >= num_sequences: each sequence has a row, so any more rows are drafts.
        """
        size = self._replayed(num_sequences)
        rows = num_rows + np.arange(most_more + 1)
        is_replayed = rows <= size * self.width
        rows = np.where(is_replayed, size * self.width, rows)
        sequences = np.where(is_replayed, size, num_sequences)
        seconds: FloatArray = self.passes.over(rows) + context * (
            sequences * self.context_per_sequence + rows * self.context_per_row
        )
        seconds[0] = self.pass_seconds(
            num_sequences=num_sequences, num_rows=num_rows, context=context
        )
        return seconds

    def draft_table(self, *, num_drafting: int, most_more: int, context: int) -> FloatArray:
        """Predict draft passes over num_drafting + 0, 1, ..., most_more sequences."""
        return np.array(
            [
                self.draft_seconds(num_sequences=num_drafting + n, context=context)
                for n in range(most_more + 1)
            ]
        )

    def draft_seconds(self, *, num_sequences: int, context: int) -> float:
        """Predict a draft pass; 0 without sequences."""
        if num_sequences == 0:
            return 0.0
        num_sequences = max(num_sequences, self._replayed(num_sequences))
        return self.drafts.at(num_sequences) + num_sequences * context * self.context_per_draft

    def _replayed(self, num_sequences: int) -> int:
        """Return the capture size of so many sequences; 0 where none holds them."""
        return next((size for size in self.capture_sizes if size >= num_sequences), 0)
