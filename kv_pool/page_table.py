"""Maps one sequence's token positions to slots of the KV pool. Integers only."""

from array import array
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64

_INT32 = "i"


class PageTable:
    """Maps logical positions to physical slots.

    position   0  1  2  3 | 4  5  6  7 | 8  9
    page           7      |     2      |   5          page_size = 4
    slot      28 29 30 31 | 8  9 10 11 | 20 21

    The sequence's length, not this table, determines how many positions are computed.
    Pages are one int32 array, the layout that attention reads: each step copies the tables of
    the whole batch, and a Python loop would be too slow for long contexts.
    """

    __slots__ = ("page_size", "pages")

    def __init__(self, page_size: int, pages: Iterable[int] = ()) -> None:
        """page_size: tokens."""
        self.page_size = page_size
        self.pages: array[int] = array(_INT32, pages)

    @property
    def num_slots(self) -> int:
        """Count the tokens that fit into the pages."""
        return len(self.pages) * self.page_size

    def missing_pages(self, length: int) -> int:
        """Count the pages to add before `length` tokens fit."""
        return max(0, self._num_pages(length) - len(self.pages))

    def extend(self, pages: Iterable[int]) -> None:
        self.pages.extend(pages)

    def trim(self, length: int) -> list[int]:
        """Remove the pages that `length` tokens do not need; return them for release."""
        keep = self._num_pages(length)
        dropped = self.pages[keep:].tolist()
        del self.pages[keep:]
        return dropped

    def slots(self, start: int, stop: int) -> Int64[np.ndarray, "N"]:
        """Return the physical slots of the positions start .. stop - 1."""
        assert 0 <= start <= stop <= self.num_slots, (
            f"positions {start}..{stop} of a table with {self.num_slots} slots"
        )
        first = start // self.page_size
        pages = np.asarray(self.pages[first : self._num_pages(stop)], dtype=np.int64)
        positions = np.arange(start, stop)
        offsets = positions % self.page_size
        return pages[positions // self.page_size - first] * self.page_size + offsets

    def _num_pages(self, length: int) -> int:
        return -(-length // self.page_size)
