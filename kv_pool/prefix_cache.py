"""Maps token prefixes to cached full pages: a radix tree with LRU eviction. Integers only.

Reference counts live in PageAllocator; PageManager reports which cached pages are idle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# The tokens of a page; those of a prefix's first page follow the salt, if there is one.
_Key = tuple[int | str, ...]


@dataclass(slots=True, eq=False)
class _Entry:
    """Represents one cached page: its tokens follow those of all its ancestors."""

    page: int
    key: _Key
    parent: "_Entry | None"  # None only for the root, which has no page
    children: dict[_Key, "_Entry"] = field(default_factory=dict)

    def subtree(self) -> Iterator["_Entry"]:
        """Yield this entry and all below it. Iterative: chains can be thousands of pages long."""
        stack = [self]
        while stack:
            entry = stack.pop()
            yield entry
            stack.extend(entry.children.values())


class PrefixCache:
    """Stores full pages in a tree: a path from the root is a token prefix, page by page.

    root -- (5 8 1 9) page 7 -- (2 2 4 0) page 3
                             \\- (2 6 4 4) page 8        page_size = 4

    Lookup compares the tokens themselves, not only their hash, so a hit is always exact.
    Prefixes with different salts share nothing.
    A page is *idle* while only the cache holds it; see `mark_idle` and `mark_in_use`.
    Eviction takes the page that has been idle longest, leaves before their parents.
    """

    def __init__(self, *, page_size: int) -> None:
        self._page_size = page_size
        self._root = _Entry(page=-1, key=(), parent=None)
        self._entries: dict[int, _Entry] = {}  # by page
        self._idle: dict[int, None] = {}  # pages in the order in which they became idle

    def __contains__(self, page: int) -> bool:
        return page in self._entries

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def match(self, token_ids: Sequence[int], *, max_pages: int, salt: str = "") -> list[int]:
        """Find the longest cached prefix of token_ids: at most max_pages full pages."""
        pages: list[int] = []
        entry: _Entry | None = self._root
        for index in range(min(max_pages, len(token_ids) // self._page_size)):
            assert entry is not None
            entry = entry.children.get(self._key(token_ids, index, salt))
            if entry is None:
                break
            pages.append(entry.page)
        return pages

    def insert(self, token_ids: Sequence[int], pages: Sequence[int], salt: str = "") -> list[int]:
        """Add a sequence's full pages and return those that were not yet cached.

        If the same tokens are already cached on another page, that page stays.
        """
        parent, start = self._deepest_cached(token_ids, pages, salt)
        added: list[int] = []
        for index in range(start, len(pages)):
            key = self._key(token_ids, index, salt)
            if key not in parent.children:
                page = pages[index]
                assert page not in self._entries, f"page {page} is cached with other tokens"
                parent.children[key] = self._entries[page] = _Entry(page, key, parent)
                added.append(page)
            parent = parent.children[key]
        return added

    def mark_idle(self, page: int) -> None:
        """Make the page evictable: no sequence holds it any more."""
        self._idle[page] = None

    def mark_in_use(self, page: int) -> None:
        """Protect the page from eviction: a sequence holds it."""
        self._idle.pop(page, None)

    def evict(self) -> list[int]:
        """Remove one idle leaf with its subtree and return the removed pages.

        An idle page can be the parent of a held one, if the holder computed the same prefix on
        another page. If no descendant is idle, the held descendants leave the cache too: without
        their parent no lookup reaches them.
        """
        victim = self._entries[next(iter(self._idle))]
        while (child := self._idle_child(victim)) is not None:
            victim = child
        assert victim.parent is not None
        del victim.parent.children[victim.key]
        removed = [entry.page for entry in victim.subtree()]
        for page in removed:
            del self._entries[page]
            self.mark_in_use(page)
        return removed

    def clear(self) -> list[int]:
        """Empty the cache and return the removed pages."""
        pages = list(self._entries)
        self._root.children.clear()
        self._entries.clear()
        self._idle.clear()
        return pages

    def _deepest_cached(
        self, token_ids: Sequence[int], pages: Sequence[int], salt: str
    ) -> tuple[_Entry, int]:
        """Find the last of these pages that is cached, and the index after it.

        All pages before a cached page are cached too, so none of them is looked up.
        """
        for index in range(len(pages) - 1, -1, -1):
            entry = self._entries.get(pages[index])
            if entry is not None:
                assert entry.key == self._key(token_ids, index, salt), (
                    f"page {entry.page} is cached with other tokens"
                )
                return entry, index + 1
        return self._root, 0

    def _idle_child(self, entry: _Entry) -> _Entry | None:
        return next((c for c in entry.children.values() if c.page in self._idle), None)

    def _key(self, token_ids: Sequence[int], index: int, salt: str) -> _Key:
        tokens = tuple(token_ids[index * self._page_size : (index + 1) * self._page_size])
        return (salt, *tokens) if salt and index == 0 else tokens
