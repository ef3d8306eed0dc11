"""Finds stops in text across tokens: in the engine to end a sequence, in the server to cut text.

Both sides decode the same tokens one at a time and search for the same strings and regexes. So they
find the same stop at the same token, however the engine groups tokens into events.

Special tokens that the text leaves out can be part of a stop. In the searched text each of them is
one character that no decoded text contains, its mark.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.text.detokenizer import Decoder
from server.text.stop_regex import RegexSearch, StopRegex

_MARKS: Iterable[int] = range(0xD800, 0xE000)  # lone surrogates: no decoded text has them


class StopTable:
    """Matches any number of stop strings with one automaton (Aho and Corasick, 1975).

    A state is the longest suffix of the text that is a prefix of a stop. The cost per character
    does not depend on the number of stops. Immutable, so several searches can share it. Regexes
    have automata of their own; special tokens are no part of their matches.
    """

    def __init__(
        self,
        stops: Sequence[str],
        *,
        hidden: Mapping[int, str] | None = None,
        regexes: Sequence[StopRegex] = (),
    ) -> None:
        """hidden: the special tokens that the text leaves out, with their texts."""
        self.regexes = regexes
        assert all(stops), f"an empty stop string: {stops!r}"
        every_stop = "\n".join(stops)
        used = {i: text for i, text in (hidden or {}).items() if text and text in every_stop}
        self._marks = dict(zip(used, map(chr, _MARKS), strict=False))
        names = {stop: stop for stop in stops}  # by the searched text
        for stop in stops:
            names.setdefault(self._marked(stop, used), stop)
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]  # length of the prefix that a state represents
        self._longest = [0]  # length of the longest stop that ends in a state, or 0
        self._names = [""]  # the client's text of that stop
        for searched, name in names.items():
            self._add(searched, name)
        self._fallback = [0] * len(self._next)
        self._link()

    @property
    def is_empty(self) -> bool:
        return len(self._next) == 1 and not self.regexes

    def mark(self, token_id: int) -> str:
        """Return the character that represents this token in the searched text; "" without one."""
        return self._marks.get(token_id, "")

    def without_marks(self, text: str) -> str:
        for mark in self._marks.values():
            text = text.replace(mark, "")
        return text

    def is_mark(self, char: str) -> bool:
        return char in self._marks.values()

    def step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(char, 0)

    def depth(self, state: int) -> int:
        return self._depth[state]

    def longest(self, state: int) -> tuple[int, str]:
        """Return the longest stop that ends in a state: its length, or 0, and the client's text."""
        return self._longest[state], self._names[state]

    def _marked(self, stop: str, texts: Mapping[int, str]) -> str:
        """Replace the texts of special tokens by their marks, the longest text first."""
        for token_id in sorted(self._marks, key=lambda i: len(texts[i]), reverse=True):
            stop = stop.replace(texts[token_id], self._marks[token_id])
        return stop

    def _add(self, searched: str, name: str) -> None:
        state = 0
        for char in searched:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._longest.append(0)
                self._names.append("")
            state = self._next[state][char]
        self._longest[state], self._names[state] = len(searched), name

    def _link(self) -> None:
        """Compute fallback states breadth first, for characters without a transition."""
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            for char, child in self._next[state].items():
                self._fallback[child] = self.step(self._fallback[state], char)
                states.append(child)
            if not self._longest[state]:
                fallback = self._fallback[state]
                self._longest[state], self._names[state] = self.longest(fallback)


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop that the latest piece of text completes.

    The text up to piece[:end] ends with it, with `length` characters of the searched text.
    """

    stop: str  # the client's
    length: int
    end: int


class StopSearch:
    """Searches the text of one completion.

    The stop that is complete first wins; of several that end together, the longest.
    """

    def __init__(self, table: StopTable) -> None:
        self._table = table
        self._state = 0
        self._regexes = [RegexSearch(regex) for regex in table.regexes]

    @property
    def num_undecided(self) -> int:
        """Number of trailing characters that may begin a stop."""
        depth = self._table.depth(self._state)
        return max([depth, *(search.num_undecided for search in self._regexes)])

    def feed(self, piece: str, *, is_active: bool = True) -> StopMatch | None:
        """Return the first stop that the piece completes; none where is_active is False."""
        for end, char in enumerate(piece, start=1):
            self._state = self._table.step(self._state, char)
            length, stop = self._table.longest(self._state)
            for search in self._regexes:
                found = search.skip() if self._table.is_mark(char) else search.step(char)
                if found > length:
                    length, stop = found, search.pattern
            if length and is_active:
                return StopMatch(stop, length, end)
        return None


class StopStringScanner:
    """Finds stops in the text of committed tokens; the engine's StopScanner.

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
        return match.stop if match else None


class OutputText:
    """Decodes the text of one completion incrementally, without its stop.

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
        """keeps_stop: the text ends with the stop."""
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
        end = end if self._keeps_stop else end - match.length
        return self._table.without_marks(text[:end])

    def flush(self) -> str:
        """Return the remaining text after the last token; "" after a stop string."""
        if self._is_stopped:
            return ""
        self._is_stopped = True
        return self._table.without_marks(self._withheld) + self._decoder.flush()
