"""Defines the batch sizes that passes are captured for."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class CaptureSizes:
    """Ascending numbers of sequences. A batch is padded to the smallest size that holds it."""

    sizes: tuple[int, ...]

    @classmethod
    def up_to(cls, largest: int) -> Self:
        """Choose powers of two and the largest: no batch is padded to more than twice its size."""
        assert largest >= 1, largest
        sizes = {1 << n for n in range(largest.bit_length()) if 1 << n < largest}
        return cls(tuple(sorted(sizes | {largest})))

    def holding(self, num_sequences: int) -> int | None:
        """Find the smallest size that holds so many sequences; None when none does."""
        return next((size for size in self.sizes if size >= num_sequences), None)
