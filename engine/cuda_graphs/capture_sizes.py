"""Batch sizes that passes are recorded for."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class CaptureSizes:
    """Ascending numbers of sequences. A batch goes to the smallest that holds it, padded."""

    sizes: tuple[int, ...]

    @classmethod
    def up_to(cls, largest: int) -> Self:
        """Powers of two, and the largest itself: no batch is padded to more than twice its size."""
        assert largest >= 1, largest
        sizes = {1 << n for n in range(largest.bit_length()) if 1 << n < largest}
        return cls(tuple(sorted(sizes | {largest})))

    def holding(self, num_sequences: int) -> int | None:
        """The smallest tier that holds so many; None when none does."""
        return next((size for size in self.sizes if size >= num_sequences), None)
