"""Finds stop strings across tokens: in the engine to end a sequence, in the server to cut text.

Both sides decode the same tokens one at a time and search the same table. So they find the same
stop at the same token, however the engine groups tokens into events.

Special tokens that the text leaves out can be part of a stop. In the searched text each of them is
one character that no decoded text contains, its mark.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.text.detokenizer import Decoder

_MARKS: Iterable[int] = range(0xD800, 0xE000)  # lone surrogates: no decoded text has them


class StopTable:
    """Matches any number of stop strings with one automaton (Aho and Corasick, 1975).

    A state is the longest suffix of the text that is a prefix of a stop. The cost per character
    does not depend on the number of stops. Immutable, so several searches can share it.
    """

    def __init__(self, stops: Sequence[str], *, hidden: Mapping[int, str] | None = None) -> None:
        """hidden: the special tokens that the text leaves out, with their texts."""
        assert all(stops), f"an empty stop string: {stops!r}"
        every_stop = "\n".join(stops)
        used = {i: text for i, text in (hidden or {}).items() if text and text in every_stop}
        self._marks = dict(zip(used, map(chr, _MARKS), strict=False))
        self._by_searched = {stop: stop for stop in stops}
        for stop in stops:
            self._by_searched.setdefault(self._marked(stop, used), stop)
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]  # length of the prefix that a state represents
        self._longest = [0]  # length of the longest stop that ends in a state, or 0
        for stop in self._by_searched:
            self._add(stop)
        self._fallback = [0] * len(self._next)
        self._link()

    @property
    def is_empty(self) -> bool:
        return len(self._next) == 1

    def mark(self, token_id: int) -> str:
        """Return the character that represents this token in the searched text; "" without one."""
        return self._marks.get(token_id, "")

    def without_marks(self, text: str) -> str:
        for mark in self._marks.values():
            text = text.replace(mark, "")
        return text

    def stop_of(self, searched: str) -> str:
        """Return the client's stop string for one that was found in the searched text."""
        return self._by_searched[searched]

    def step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(char, 0)

    def depth(self, state: int) -> int:
        return self._depth[state]

    def longest(self, state: int) -> int:
        return self._longest[state]

    def _marked(self, stop: str, texts: Mapping[int, str]) -> str:
        """Replace the texts of special tokens by their marks, the longest text first."""
        for token_id in sorted(self._marks, key=lambda i: len(texts[i]), reverse=True):
            stop = stop.replace(texts[token_id], self._marks[token_id])
        return stop

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._longest.append(0)
            state = self._next[state][char]
        self._longest[state] = len(stop)

    def _link(self) -> None:
        """Compute fallback states breadth first, for characters without a transition."""
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            for char, child in self._next[state].items():
                self._fallback[child] = self.step(self._fallback[state], char)
                states.append(child)
            if not self._longest[state]:
                self._longest[state] = self._longest[self._fallback[state]]


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop that the latest piece of text completes: piece[:end] ends with it."""

    stop: str
    end: int


class StopSearch:
    """Searches the text of one completion.

    The stop that is complete first wins; of several that end together, the longest.
    """

    def __init__(self, table: StopTable) -> None:
        self._table = table
        self._state = 0
        self._tail = ""  # the prefix that the state represents

    @property
    def num_undecided(self) -> int:
        """Number of trailing characters that may begin a stop."""
        return len(self._tail)

    def feed(self, piece: str, *, is_active: bool = True) -> StopMatch | None:
        """Return the first stop that the piece completes; none where is_active is False."""
        text = self._tail + piece
        for end, char in enumerate(piece, start=1):
            self._state = self._table.step(self._state, char)
            length = self._table.longest(self._state) if is_active else 0
            if length:
                stop_at = len(self._tail) + end
                return StopMatch(text[stop_at - length : stop_at], end)
        depth = self._table.depth(self._state)
        self._tail = text[len(text) - depth :]
        return None


class StopStringScanner:
    """Finds stop strings in committed tokens; the engine's StopScanner.

    A stop that is complete before min_tokens tokens is ignored.
    """

    def __init__(self, *, decoder: Decoder, table: StopTable, min_tokens: int = 0) -> None:
        self._decoder = decoder
        self._table = table
        self._search = StopSearch(table)
        self._num_remaining = min_tokens

    def feed(self, token_id: int) -> str | None:
        self._num_remaining -= 1
        piece = self._decoder.push(token_id) + self._table.mark(token_id)
        match = self._search.feed(piece, is_active=self._num_remaining <= 0)
        return self._table.stop_of(match.stop) if match else None


class OutputText:
    """Decodes the text of one completion incrementally, without its stop string.

    Text that may begin a stop is withheld until that is decided. The joined results of push() and
    flush() are the completion's text. min_tokens is the scanner's.
    """

    def __init__(
        self,
        *,
        decoder: Decoder,
        table: StopTable,
        min_tokens: int = 0,
        keeps_stop: bool = False,
    ) -> None:
        """keeps_stop: the text ends with the stop string."""
        self._decoder = decoder
        self._table = table
        self._search = StopSearch(table)
        self._num_remaining = min_tokens
        self._keeps_stop = keeps_stop
        self._withheld = ""
        self._is_stopped = False
        self._has_stops = not table.is_empty

    def push(self, token_id: int) -> str:
        if not self._has_stops:
            return self._decoder.push(token_id)
        if self._is_stopped:
            return ""
        self._num_remaining -= 1
        piece = self._decoder.push(token_id) + self._table.mark(token_id)
        match = self._search.feed(piece, is_active=self._num_remaining <= 0)
        text = self._withheld + piece
        if match is None:
            keep_from = len(text) - self._search.num_undecided
            self._withheld = text[keep_from:]
            return self._table.without_marks(text[:keep_from])
        self._is_stopped = True
        end = len(self._withheld) + match.end
        end = end if self._keeps_stop else end - len(match.stop)
        return self._table.without_marks(text[:end])

    def flush(self) -> str:
        """Return the remaining text after the last token; "" after a stop string."""
        if self._is_stopped:
            return ""
        self._is_stopped = True
        return self._table.without_marks(self._withheld) + self._decoder.flush()
