"""Allocates pages with reference counts. Integers only."""

from collections import Counter
from collections.abc import Sequence


class OutOfPages(Exception):
    """Raised when fewer pages are free than requested; nothing was allocated."""


class PageAllocator:
    """Keeps a free list and a reference count for every page.

    page         0  1  2  3  4
    references   1  0  2  1  0        free: 4, 1    page 2 is shared

    allocate sets a page's count to 1, retain adds 1, release subtracts 1. A page with count 0
    is free. The page freed last is allocated first.
    """

    def __init__(self, *, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` free pages. Raises OutOfPages, and allocates nothing, if too few."""
        assert count >= 0, f"{count} pages"
        if count > self.num_free:
            raise OutOfPages(f"{count} pages needed, {self.num_free} of {self.num_pages} are free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def retain(self, pages: Sequence[int]) -> None:
        """Add one reference to each page; a free page cannot be retained."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} retained while free"
            self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference from each page; all are checked before any changes."""
        for page, times in Counter(pages).items():
            assert self._references[page] >= times, f"page {page} released more often than held"
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def num_references(self, page: int) -> int:
        return self._references[page]
