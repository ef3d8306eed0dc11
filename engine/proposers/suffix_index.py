"""Finds the longest suffix of a token sequence that occurred before, in constant time per token.

The index is a suffix automaton (Blumer et al. 1985), extended online. A state stands for all
substrings with the same end positions; its link leads to their longest suffix that occurs elsewhere
too. After each token, the link of the newest state is the longest suffix that occurred before.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

INDEX_BYTES = 450  # of a token, about
_ROOT = 0


@dataclass(frozen=True, slots=True)
class Match:
    """The longest suffix that occurred before.

    end is the position after its earlier occurrence: the token there followed it.
    """

    length: int  # tokens; 0: even the last token is new
    end: int


class SuffixIndex:
    """Indexes one growing token sequence.

    Appending takes amortised constant time. Memory is about INDEX_BYTES per token.
    """

    __slots__ = (
        "_ends",
        "_last",
        "_lengths",
        "_links",
        "_match_end",
        "_token_ids",
        "_transitions",
        "match_len",
    )

    def __init__(self) -> None:
        self._token_ids = array("i")
        self._transitions: list[dict[int, int]] = [{}]  # of each state: token id -> state
        self._lengths = array("i", [0])  # of each state's longest substring
        self._links = array("i", [-1])
        self._ends = array("i", [0])  # position after each state's latest known occurrence
        self._last = _ROOT
        self._match_end = 0
        self.match_len = 0

    def __len__(self) -> int:
        """Return the number of indexed tokens."""
        return len(self._token_ids)

    @property
    def match(self) -> Match:
        return Match(self.match_len, self._match_end)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens and update `match`.

        Of several occurrences, `match` is the latest at which the same suffix was the longest
        repeated one, otherwise the first.
        """
        for token_id in token_ids:
            self._append(token_id)

    def continuation(self, count: int) -> list[int]:
        """Return `count` tokens as they followed the match; without a match none.

        A match that overlaps the end continues periodically.
        """
        if self.match_len == 0:
            return []
        known, start = self._token_ids, self._match_end
        found = known[start : start + count].tolist()
        period = len(known) - start
        while len(found) < count:
            found.append(found[len(found) - period])
        return found

    def advance(self, state: int, length: int, token_ids: Sequence[int]) -> tuple[int, int]:
        """Match another text: extend the longest suffix of it that occurs here by its next tokens.

        state and length are 0 before any token, and otherwise what the last call has returned;
        tokens may have been appended since.
        """
        transitions, lengths, links = self._transitions, self._lengths, self._links
        while state != _ROOT and lengths[links[state]] >= length:
            state = links[state]  # the state was split
        for token_id in token_ids:
            while state != _ROOT and token_id not in transitions[state]:
                state = links[state]
                length = lengths[state]
            found = transitions[state].get(token_id)
            if found is not None:
                state, length = found, length + 1
        return state, length

    def after(self, state: int, count: int) -> list[int]:
        """Return at most `count` tokens as they followed the latest known match of a state."""
        end = self._ends[state]
        return self._token_ids[end : end + count].tolist()

    def _append(self, token_id: int) -> None:
        transitions, lengths, links = self._transitions, self._lengths, self._links
        self._token_ids.append(token_id)
        length = len(self._token_ids)
        new = self._add_state({}, length=length, link=_ROOT, end=length)
        state = self._last
        while state != -1 and token_id not in transitions[state]:
            transitions[state][token_id] = new
            state = links[state]
        if state != -1:
            target = transitions[state][token_id]
            if lengths[target] != lengths[state] + 1:
                target = self._split(target, token_id, state)
            links[new] = target
        self._last = new
        repeated = links[new]
        self.match_len, self._match_end = lengths[repeated], self._ends[repeated]
        if repeated != _ROOT:
            self._ends[repeated] = length

    def _split(self, target: int, token_id: int, state: int) -> int:
        """Move the substrings of `target` that `state` reaches to a new state, and return it."""
        transitions, links = self._transitions, self._links
        clone = self._add_state(
            transitions[target].copy(),
            length=self._lengths[state] + 1,
            link=links[target],
            end=self._ends[target],
        )
        while state != -1 and transitions[state].get(token_id) == target:
            transitions[state][token_id] = clone
            state = links[state]
        links[target] = clone
        return clone

    def _add_state(self, transitions: dict[int, int], *, length: int, link: int, end: int) -> int:
        self._transitions.append(transitions)
        self._lengths.append(length)
        self._links.append(link)
        self._ends.append(end)
        return len(self._lengths) - 1
