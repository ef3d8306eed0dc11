"""Who holds which page. Integers only."""

from collections import Counter
from collections.abc import Sequence


class OutOfPages(Exception):
    """Fewer pages are free than were asked for; nothing was taken."""


class PageAllocator:
    """A free list, and a count of holders for every page.

    page       0  1  2  3  4
    holders    1  0  2  1  0        free: 4, 1    page 2 is shared

    allocate gives a page its first holder, retain adds one, release takes one away; a page
    with no holder is free again. The page freed last is the first to be handed out.
    """

    def __init__(self, *, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free pages. Raises OutOfPages, and takes nothing, when there are fewer."""
        assert count >= 0, f"{count} pages"
        if count > self.num_free:
            raise OutOfPages(f"{count} pages needed, {self.num_free} of {self.num_pages} are free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def retain(self, pages: Sequence[int]) -> None:
        """Add a holder to each page; one that is free cannot be retained."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} retained while free"
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Take a holder from each page. All of them are checked before any changes."""
        for page, times in Counter(pages).items():
            assert self._holders[page] >= times, f"page {page} released more often than held"
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free.append(page)

    def holders(self, page: int) -> int:
        return self._holders[page]
