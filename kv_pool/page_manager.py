"""Pages as the scheduler sees them: allocator and prefix cache under one roof."""

from collections.abc import Sequence

from kv_pool.allocator import OutOfPages, PageAllocator
from kv_pool.prefix_cache import PrefixCache


class PageManager:
    """Pages that are held by sequences, kept by the cache, or free.

    |<------------------- num_pages ------------------->|
    |  held by sequences  |  cached, held by none | free |
    |<---- num_used ----->|<---- num_cached ----->|      |
                          |<------- num_available ------>|

    The cache counts as one holder of each of its pages; a page that only the cache holds is
    given up when a sequence needs it. A page that `is_shared` must not be written: its content
    is, or may become, another sequence's prefix. Who has to write there copies it first.
    """

    def __init__(self, *, num_pages: int, page_size: int, prefix_cache: bool) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._allocator = PageAllocator(num_pages=num_pages)
        self._cache = PrefixCache(page_size=page_size)
        self.caches_prefixes = prefix_cache

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can give: free, or cached and held by nobody."""
        return self._allocator.num_free + self._cache.num_idle

    @property
    def num_used(self) -> int:
        """Pages held by sequences, cached or not."""
        return self.num_pages - self.num_available

    @property
    def num_cached(self) -> int:
        """Pages held by nobody but the cache."""
        return self._cache.num_idle

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, giving up the longest idle cached ones when too few are free.

        Raises OutOfPages, and takes and gives up nothing, when count > num_available.
        """
        if count > self.num_available:
            raise OutOfPages(
                f"{count} pages needed, {self.num_available} of {self.num_pages} are available"
            )
        while self._allocator.num_free < count:
            self._allocator.release(self._cache.evict())
        return self._allocator.allocate(count)

    def retain(self, pages: Sequence[int]) -> None:
        """Add a holder to each page, which must be held or cached."""
        self._allocator.retain(pages)
        for page in pages:
            self._cache.wake(page)

    def release(self, pages: Sequence[int]) -> None:
        """Take a holder from each page, given in the order of their tokens.

        A page without holders is free, or idle when it is cached. Later pages come to rest
        first, so that the end of a prefix is given up before its beginning.
        """
        self._allocator.release(pages)
        for page in reversed(pages):
            if page in self._cache:
                holders = self._allocator.holders(page)
                assert holders >= 1, f"page {page} released more often than held"
                if holders == 1:
                    self._cache.rest(page)

    def is_shared(self, page: int) -> bool:
        """Whether a held page is published, or has more than one holder among sequences."""
        return self._allocator.holders(page) > 1

    def match_prefix(self, token_ids: Sequence[int], *, max_tokens: int) -> list[int]:
        """The longest chain of cached pages that token_ids begins with, retained for the caller.

        Only full pages, max_tokens tokens at most; [] when the cache is off.
        """
        pages = self._cache.match(token_ids, max_pages=max_tokens // self.page_size)
        self.retain(pages)
        return pages

    def publish(self, token_ids: Sequence[int], pages: Sequence[int]) -> None:
        """Let others find a sequence's full pages by their tokens.

        pages[i] holds token_ids[i * page_size : (i + 1) * page_size], is held by the caller, and
        is true in both storages. Idempotent. Where the same tokens are cached already, the first
        page stays.
        """
        assert len(pages) * self.page_size <= len(token_ids), (
            f"{len(pages)} pages of {self.page_size} for {len(token_ids)} tokens: not all are full"
        )
        if self.caches_prefixes:
            self._allocator.retain(self._cache.insert(token_ids, pages))

    def flush(self) -> int:
        """Forget every cached page; how many became free.

        What sequences hold stays theirs, and nobody finds it until it is published again.
        """
        free_before = self._allocator.num_free
        self._allocator.release(self._cache.clear())
        return self._allocator.num_free - free_before
