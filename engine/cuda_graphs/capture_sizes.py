"""Defines the batch sizes that passes are captured for."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class CaptureSizes:
    """Ascending numbers of sequences. A batch is padded to the smallest size that holds it."""

    sizes: tuple[int, ...]

    @classmethod
    def up_to(cls, largest: int) -> Self:
        """Choose 1, 2, 4, 8, every 4 up to 32, every 8 after that, and the largest.

        At 33 sequences and more a pass is arithmetic, so padding costs as much as sequences do.
        """
        assert largest >= 1, largest
        sizes = {1, 2, 4, *range(8, 32, 4), *range(32, largest, 8)}
        return cls(tuple(sorted({size for size in sizes if size < largest} | {largest})))

    def holding(self, num_sequences: int) -> int | None:
        """Find the smallest size that holds so many sequences; None when none does."""
        return next((size for size in self.sizes if size >= num_sequences), None)
