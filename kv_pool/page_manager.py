"""Combines page allocator and prefix cache: the scheduler's interface to KV pages."""

from collections.abc import Sequence

from kv_pool.allocator import OutOfPages, PageAllocator
from kv_pool.prefix_cache import PrefixCache


class PageManager:
    """Allocates, shares, caches and frees pages. Integers only.

    |<------------------- num_pages ------------------->|
    |  held by sequences  |  cached, held by none | free |
    |<---- num_used ----->|<---- num_cached ----->|      |
                          |<------- num_available ------>|

    A page's reference count counts its sequences, plus one if it is cached. A page that only
    the cache references is evicted when a sequence needs it. Published pages must not be
    written: other sequences read them as their prefix.
    """

    def __init__(self, *, num_pages: int, page_size: int, prefix_cache: bool) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._allocator = PageAllocator(num_pages=num_pages)
        self._cache = PrefixCache(page_size=page_size)
        self.caches_prefixes = prefix_cache
        self.num_published = 0  # pages that entered the prefix cache since the start

    @property
    def num_available(self) -> int:
        """Count the pages that `allocate` can return: free ones and idle cached ones."""
        return self._allocator.num_free + self._cache.num_idle

    @property
    def num_used(self) -> int:
        """Count the pages held by sequences, cached or not."""
        return self.num_pages - self.num_available

    @property
    def num_cached(self) -> int:
        """Count the pages that only the cache holds."""
        return self._cache.num_idle

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` pages; evict the least recently used cached ones if too few are free.

        Raises OutOfPages, and allocates and evicts nothing, when count > num_available.
        """
        if count > self.num_available:
            raise OutOfPages(
                f"{count} pages needed, {self.num_available} of {self.num_pages} are available"
            )
        while self._allocator.num_free < count:
            self._allocator.release(self._cache.evict())
        return self._allocator.allocate(count)

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference from each page; `pages` are in token order.

        A page without references becomes free, or idle if it is cached. Later pages become
        idle first, so that the end of a prefix is evicted before its beginning.
        """
        self._allocator.release(pages)
        for page in reversed(pages):
            if page in self._cache:
                references = self._allocator.num_references(page)
                assert references >= 1, f"page {page} released more often than held"
                if references == 1:
                    self._cache.mark_idle(page)

    def match_prefix(
        self, token_ids: Sequence[int], *, max_tokens: int, num_pages: int = 0, salt: str = ""
    ) -> list[int]:
        """Take a reference to the pages of the longest cached prefix with this salt.

        Matches full pages only, at most max_tokens tokens; [] when the cache is off. Raises
        OutOfPages, and changes nothing, if the rest of num_pages could not be allocated then.
        """
        pages = self._cache.match(token_ids, max_pages=max_tokens // self.page_size, salt=salt)
        num_idle = sum(self._allocator.num_references(page) == 1 for page in pages)
        if num_pages - len(pages) > self.num_available - num_idle:
            raise OutOfPages(
                f"{num_pages} pages needed, {len(pages)} are cached and "
                f"{self.num_available - num_idle} others of {self.num_pages} are available"
            )
        self._allocator.retain(pages)
        for page in pages:
            self._cache.mark_in_use(page)
        return pages

    def publish(self, token_ids: Sequence[int], pages: Sequence[int], *, salt: str = "") -> None:
        """Add a sequence's full pages to the prefix cache, for sequences with its salt. Idempotent.

        pages[i] holds token_ids[i * page_size : (i + 1) * page_size]. The caller holds the
        pages, and their KV is computed for both models. If the same tokens are already cached on
        another page, that page stays.
        """
        assert len(pages) * self.page_size <= len(token_ids), (
            f"{len(pages)} pages of {self.page_size} for {len(token_ids)} tokens: not all are full"
        )
        if self.caches_prefixes:
            added = self._cache.insert(token_ids, pages, salt)
            self._allocator.retain(added)
            self.num_published += len(added)

    def flush(self) -> int:
        """Empty the prefix cache and return how many pages became free.

        Sequences keep their pages, which match again only once they are published again.
        """
        free_before = self._allocator.num_free
        self._allocator.release(self._cache.clear())
        return self._allocator.num_free - free_before
