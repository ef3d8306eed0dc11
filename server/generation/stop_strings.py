"""Stop strings: found across tokens by the engine's scanner, cut out of the text by the server.

Both sides read the same tokens through the same decoder and the same table, one token at a
time, so they see the same stop at the same token, however an answer is cut into events.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from server.text.detokenizer import Decoder


class StopTable:
    """Any number of stop strings as one automaton (Aho and Corasick, 1975).

    A state is the longest end of the text so far that is a beginning of some stop; reading a
    character costs the same for one stop and for a hundred. Immutable, so it can be shared.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), f"an empty stop string: {stops!r}"
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]  # characters of the beginning that a state stands for
        self._longest = [0]  # length of the longest stop that ends in a state; 0: none does
        for stop in stops:
            self._add(stop)
        self._fallback = [0] * len(self._next)
        self._link()

    @property
    def is_empty(self) -> bool:
        return len(self._next) == 1

    def step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(char, 0)

    def depth(self, state: int) -> int:
        return self._depth[state]

    def longest(self, state: int) -> int:
        return self._longest[state]

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
        """Breadth first: where to go on when the next character does not fit."""
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
    """A stop that the last piece of text completed: piece[:end] ends with it."""

    stop: str
    end: int


class StopSearch:
    """One answer's way through a table.

    The stop whose last character comes first wins; among those that end together, the one that
    begins earliest.
    """

    def __init__(self, table: StopTable) -> None:
        self._table = table
        self._state = 0
        self._tail = ""  # the characters that the state stands for

    @property
    def num_undecided(self) -> int:
        """Trailing characters of the text that may be the beginning of a stop."""
        return len(self._tail)

    def feed(self, piece: str, *, counts: bool = True) -> StopMatch | None:
        """The first stop that the piece completes; counts false: read on as if there were none."""
        text = self._tail + piece
        for end, char in enumerate(piece, start=1):
            self._state = self._table.step(self._state, char)
            length = self._table.longest(self._state) if counts else 0
            if length:
                stop_at = len(self._tail) + end
                return StopMatch(text[stop_at - length : stop_at], end)
        depth = self._table.depth(self._state)
        self._tail = text[len(text) - depth :]
        return None


class StopStrings:
    """The engine's StopScanner: token ids in, the stop string that they complete out.

    A stop that is complete before token number min_tokens is passed over.
    """

    def __init__(self, *, decoder: Decoder, table: StopTable, min_tokens: int = 0) -> None:
        self._decoder = decoder
        self._search = StopSearch(table)
        self._num_short = min_tokens

    def feed(self, token_id: int) -> str | None:
        self._num_short -= 1
        piece = self._decoder.push(token_id)
        match = self._search.feed(piece, counts=self._num_short <= 0)
        return match.stop if match else None


class AnswerText:
    """The text of one answer as it grows, without its stop.

    Text that may turn out to begin a stop is kept back until that is decided. The pieces
    that push() and flush() return, joined, are the answer's text, whoever asks and however often.
    min_tokens is the scanner's.
    """

    def __init__(self, *, decoder: Decoder, table: StopTable, min_tokens: int = 0) -> None:
        self._decoder = decoder
        self._search = StopSearch(table)
        self._num_short = min_tokens
        self._kept_back = ""
        self._is_stopped = False
        self._has_stops = not table.is_empty

    def push(self, token_id: int) -> str:
        if not self._has_stops:
            return self._decoder.push(token_id)
        if self._is_stopped:
            return ""
        self._num_short -= 1
        piece = self._decoder.push(token_id)
        match = self._search.feed(piece, counts=self._num_short <= 0)
        text = self._kept_back + piece
        if match is None:
            keep_from = len(text) - self._search.num_undecided
            self._kept_back = text[keep_from:]
            return text[:keep_from]
        self._is_stopped = True
        return text[: len(self._kept_back) + match.end - len(match.stop)]

    def flush(self) -> str:
        """The rest, once no more tokens will come; nothing after a stop string."""
        if self._is_stopped:
            return ""
        self._is_stopped = True
        return self._kept_back + self._decoder.flush()
