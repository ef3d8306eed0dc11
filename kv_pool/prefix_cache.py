"""Which full pages hold which tokens. Integers only; who holds a page is not known here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Entry:
    """One cached page: these tokens, after those of all its ancestors."""

    page: int
    tokens: tuple[int, ...]
    parent: "_Entry | None"  # None only for the root, which has no page
    children: dict[tuple[int, ...], "_Entry"] = field(default_factory=dict)

    def subtree(self) -> Iterator["_Entry"]:
        """This entry and all below it; without recursion, for chains can be thousands long."""
        stack = [self]
        while stack:
            entry = stack.pop()
            yield entry
            stack.extend(entry.children.values())


class PrefixCache:
    """A tree of pages: a path from the root spells a prefix, page by page.

    root -- (5 8 1 9) page 7 -- (2 2 4 0) page 3
                             \\- (2 6 4 4) page 8        page_size = 4

    Children are found by their tokens: by hash first, then exactly, and under one parent only,
    so a hit means that every token up to its end is the same. A page is *idle* while nobody
    but the cache holds it: its owner says so with `rest` and `wake`. Idle pages can be evicted,
    the one that came to rest first before the others, leaves before their parents.
    """

    def __init__(self, *, page_size: int) -> None:
        self._page_size = page_size
        self._root = _Entry(page=-1, tokens=(), parent=None)
        self._entries: dict[int, _Entry] = {}  # by page
        self._idle: dict[int, None] = {}  # pages in the order in which they came to rest

    def __contains__(self, page: int) -> bool:
        return page in self._entries

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def match(self, token_ids: Sequence[int], *, max_pages: int) -> list[int]:
        """The longest cached chain of at most max_pages full pages that token_ids begins with."""
        pages: list[int] = []
        entry: _Entry | None = self._root
        for index in range(min(max_pages, len(token_ids) // self._page_size)):
            assert entry is not None
            entry = entry.children.get(self._chunk(token_ids, index))
            if entry is None:
                break
            pages.append(entry.page)
        return pages

    def insert(self, token_ids: Sequence[int], pages: Sequence[int]) -> list[int]:
        """Add what is not yet there of a sequence's full pages; the pages that were added.

        Where the same tokens are cached already, on another page, that one stays.
        """
        parent, start = self._deepest_cached(token_ids, pages)
        added: list[int] = []
        for index in range(start, len(pages)):
            tokens = self._chunk(token_ids, index)
            if tokens not in parent.children:
                page = pages[index]
                assert page not in self._entries, f"page {page} is cached with other tokens"
                parent.children[tokens] = self._entries[page] = _Entry(page, tokens, parent)
                added.append(page)
            parent = parent.children[tokens]
        return added

    def rest(self, page: int) -> None:
        """Nobody but the cache holds the page any more."""
        self._idle[page] = None

    def wake(self, page: int) -> None:
        """Somebody holds the page again."""
        self._idle.pop(page, None)

    def evict(self) -> list[int]:
        """Forget one idle leaf; the pages forgotten, at least one of them idle.

        An idle page can stand before one that is held, when its holder came to the same tokens
        by a page of its own. Where nothing else is idle below, what is held is forgotten too:
        it can no longer be reached.
        """
        victim = self._entries[next(iter(self._idle))]
        while (child := self._idle_child(victim)) is not None:
            victim = child
        assert victim.parent is not None
        del victim.parent.children[victim.tokens]
        forgotten = [entry.page for entry in victim.subtree()]
        for page in forgotten:
            del self._entries[page]
            self.wake(page)
        return forgotten

    def clear(self) -> list[int]:
        """Forget everything; the pages forgotten."""
        pages = list(self._entries)
        self._root.children.clear()
        self._entries.clear()
        self._idle.clear()
        return pages

    def _deepest_cached(self, token_ids: Sequence[int], pages: Sequence[int]) -> tuple[_Entry, int]:
        """Where to go on: a cached page's chain is known, so nothing before it is looked up."""
        for index in range(len(pages) - 1, -1, -1):
            entry = self._entries.get(pages[index])
            if entry is not None:
                assert entry.tokens == self._chunk(token_ids, index), (
                    f"page {entry.page} is cached with other tokens"
                )
                return entry, index + 1
        return self._root, 0

    def _idle_child(self, entry: _Entry) -> _Entry | None:
        return next((c for c in entry.children.values() if c.page in self._idle), None)

    def _chunk(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(token_ids[index * self._page_size : (index + 1) * self._page_size])
