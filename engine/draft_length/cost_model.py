"""What steps take on this machine, as measured numbers: the load's side of the draft budget.

Seconds only. Nothing here reads a clock, so that a choice made from costs can be made again.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size: a straight line between two measured sizes, and their slope beyond."""

    sizes: tuple[int, ...]  # ascending
    seconds: tuple[float, ...]  # never falling

    @classmethod
    def through(cls, measured: Mapping[int, float]) -> Self:
        """The measured points, but that no size takes longer than a larger one did.

        Where it seemed to, the machine was busy with something else: whoever computes few rows
        could always compute more of them.
        """
        assert measured, "a curve has a point"
        sizes = tuple(sorted(measured))
        seconds = [measured[size] for size in sizes]
        for i in range(len(sizes) - 2, -1, -1):
            seconds[i] = min(seconds[i], seconds[i + 1])
        return cls(sizes, tuple(seconds))

    def at(self, size: int) -> float:
        """Below the first size as there."""
        sizes, seconds = self.sizes, self.seconds
        if size <= sizes[0] or len(sizes) == 1:
            return seconds[0]
        right = min(bisect_right(sizes, size), len(sizes) - 1)
        slope = (seconds[right] - seconds[right - 1]) / (sizes[right] - sizes[right - 1])
        return seconds[right] + slope * (size - sizes[right])


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: the target's pass over so many rows, and a draft pass if there is one.

    Both with all that the host does for them. The context is what a sequence attends to; a pass
    reads it once for each sequence and computes with it for each row. Where passes are replayed
    (see engine.graphs), whatever fits a tier costs what the whole tier does, and a step without
    drafts what a tier of single rows does.
    """

    passes: Curve  # by rows
    drafts: Curve  # by sequences
    context_per_sequence: float = 0.0  # of a target pass, for each token of a sequence's context
    context_per_row: float = 0.0  # of a target pass, for each row and token of context before it
    context_per_draft: float = 0.0  # of a draft pass, for each token of a sequence's context
    capture_sizes: tuple[int, ...] = ()  # of sequences, ascending; empty: nothing is replayed
    width: int = 1  # rows of a replayed window
    singles: Curve | None = None  # replayed passes over single rows, by sequences; None: as passes

    def pass_seconds(self, *, num_sequences: int, num_rows: int, context: int) -> float:
        """context: tokens, the mean over the sequences."""
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

    def draft_seconds(self, *, num_sequences: int, context: int) -> float:
        """0 where nothing drafts."""
        if num_sequences == 0:
            return 0.0
        num_sequences = max(num_sequences, self._replayed(num_sequences))
        return self.drafts.at(num_sequences) + num_sequences * context * self.context_per_draft

    def _replayed(self, num_sequences: int) -> int:
        """Sequences of the tier that so many go to; 0 where none holds them."""
        return next((size for size in self.capture_sizes if size >= num_sequences), 0)
