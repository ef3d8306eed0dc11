"""Finds matches of regexes in growing text, in time linear in the text: one automaton per regex.

Python's own matcher backtracks, so one request could stop the engine, and it cannot be fed a
character at a time. Only its parser is used here.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_STATES = 512  # of all regexes of a request together; a character costs a test for each
_MAX_PARTS = 2 * MAX_STATES  # of one regex, groups and repetitions included
_UNICODE = "(?u)"  # at the beginning of a pattern: its classes are Unicode's
_TYPES = re.ASCII | re.UNICODE
_FLAGS = re.IGNORECASE | re.DOTALL | re.VERBOSE | re.ASCII | re.UNICODE
_CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\d",
    ops.CATEGORY_NOT_DIGIT: r"\D",
    ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S",
    ops.CATEGORY_WORD: r"\w",
    ops.CATEGORY_NOT_WORD: r"\W",
}
_ACCEPT = 0  # the state of a complete match


@dataclass(frozen=True, slots=True)
class StopRegex:
    """A compiled pattern; immutable, so several searches can share it.

    A state consumes a character that passes its test; `after` has the states that follow.
    """

    pattern: str
    tests: tuple[Callable[[str], object], ...] = field(repr=False, compare=False)
    after: tuple[tuple[int, ...], ...] = field(repr=False, compare=False)
    accepts: frozenset[int] = field(repr=False, compare=False)  # states that can end a match
    at_beginning: tuple[int, ...] = field(repr=False, compare=False)  # first states of a text
    anywhere: tuple[int, ...] = field(repr=False, compare=False)  # first states later on

    @classmethod
    @lru_cache(maxsize=64)
    def compile(cls, pattern: str) -> "StopRegex":
        """Raise ValueError for a pattern that is invalid, too large, or matches no character."""
        source, flags = pattern, re.ASCII
        if pattern.startswith(_UNICODE):
            source, flags = pattern[len(_UNICODE) :], re.UNICODE
        try:
            parsed = _parser.parse(source, flags)
            return _Compiler(parsed.state.flags).compile(pattern, parsed)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        except (re.error, OverflowError) as error:
            raise ValueError(f"is no regex: {error}") from None


class _Compiler:
    """Builds an automaton from Python's parse of a pattern, from its end to its beginning."""

    def __init__(self, flags: int) -> None:
        self._flags = flags
        self._num_parts = 0
        self._tests: list[Callable[[str], object] | None] = [None]  # None: consumes nothing
        self._next: list[list[int]] = [[]]
        self._begins: set[int] = set()  # states that only the beginning of the text passes

    def compile(self, pattern: str, parsed: Any) -> StopRegex:
        first = self._sequence(parsed, _ACCEPT, self._flags)
        at_beginning = self._reached(first, is_beginning=True)
        if _ACCEPT in at_beginning:
            raise ValueError("must match at least one character; it matches empty text")
        consuming = [i for i, test in enumerate(self._tests) if test is not None]
        number = {state: i for i, state in enumerate(consuming)}
        reached = [self._reached(self._next[state][0]) for state in consuming]

        def states(found: Iterable[int]) -> tuple[int, ...]:
            return tuple(number[state] for state in found if state != _ACCEPT)

        return StopRegex(
            pattern,
            tests=tuple(test for test in self._tests if test is not None),
            after=tuple(map(states, reached)),
            accepts=frozenset(i for i, found in enumerate(reached) if _ACCEPT in found),
            at_beginning=states(at_beginning),
            anywhere=states(self._reached(first)),
        )

    def _state(self, test: Callable[[str], object] | None, following: list[int]) -> int:
        self._tests.append(test)
        self._next.append(following)
        return len(self._tests) - 1

    def _sequence(self, items: Iterable[Any], following: int, flags: int) -> int:
        """Return the first state of a sequence that is followed by a state."""
        for item in reversed(list(items)):
            self._count_part()
            op, value = item
            following = self._item(op, value, following, flags)
        return following

    def _item(self, op: Any, value: Any, following: int, flags: int) -> int:
        if op is ops.BRANCH:
            parts = []
            for part in value[1]:
                self._count_part()  # an empty one has no other part
                parts.append(self._sequence(part, following, flags))
            return self._state(None, list(dict.fromkeys(parts)))
        if op is ops.SUBPATTERN:
            _, added, removed, part = value
            if added & _TYPES:  # each excludes the others
                flags &= ~_TYPES
            return self._sequence(part, following, self._checked((flags | added) & ~removed))
        if op is ops.MAX_REPEAT or op is ops.MIN_REPEAT:
            least, most, part = value
            return self._repetition(least, most, part, following, flags)
        if op is ops.AT:
            return self._anchor(value, following)
        source = _class_source(op, value)
        if source is None:
            raise ValueError(f"has {str(op).lower()}, which is not supported")
        return self._state(re.compile(source, self._checked(flags)).match, [following])

    def _repetition(self, least: int, most: Any, part: Any, following: int, flags: int) -> int:
        if most is ops.MAXREPEAT:
            first = self._state(None, [following])
            self._next[first].append(self._sequence(part, first, flags))
        else:
            first = following
            for _ in range(most - least):
                self._count_part()
                first = self._state(None, [self._sequence(part, first, flags), following])
        for _ in range(least):
            self._count_part()
            first = self._sequence(part, first, flags)
        return first

    def _count_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise ValueError(f"is too large: more than {_MAX_PARTS} parts, repetitions written out")

    def _anchor(self, where: Any, following: int) -> int:
        if where in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            state = self._state(None, [following])
            self._begins.add(state)
            return state
        if where in (ops.AT_END, ops.AT_END_STRING):
            if following != _ACCEPT:
                raise ValueError("has an end anchor that is not at its end")
            return following  # a match ends with the text so far
        raise ValueError("has a word boundary, which is not supported")

    def _checked(self, flags: int) -> int:
        if unsupported := flags & ~_FLAGS:
            raise ValueError(f"has the flag {re.RegexFlag(unsupported)!r}; accepted: i, s, x, u")
        return flags

    def _reached(self, state: int, *, is_beginning: bool = False) -> list[int]:
        """Return the states from here on that consume a character or end the match, in order."""
        found, pending, seen = [], [state], {state}
        while pending:
            state = pending.pop()
            if self._tests[state] is not None or state == _ACCEPT:
                found.append(state)
            elif is_beginning or state not in self._begins:
                new = [each for each in dict.fromkeys(self._next[state]) if each not in seen]
                seen.update(new)
                pending += new
        return found


def _class_source(op: Any, value: Any) -> str | None:
    """Return a regex for a part that consumes one character; None for any other part."""
    if op is ops.ANY:
        return "."
    if op is ops.LITERAL:
        return re.escape(chr(value))
    if op is ops.NOT_LITERAL:
        return f"[^{re.escape(chr(value))}]"
    if op is not ops.IN:
        return None
    parts = []
    for kind, item in value:
        if kind is ops.NEGATE:
            parts.append("^")
        elif kind is ops.LITERAL:
            parts.append(re.escape(chr(item)))
        elif kind is ops.RANGE:
            parts.append("-".join(re.escape(chr(end)) for end in item))
        else:
            parts.append(_CATEGORIES[item])
    return f"[{''.join(parts)}]"


class RegexSearch:
    """Searches one text for one pattern, character by character."""

    def __init__(self, regex: StopRegex) -> None:
        self._regex = regex
        self._begun: dict[int, int] = {}  # state -> where the longest match that is in it begins
        self._position = 0
        self._has_begun = False

    @property
    def pattern(self) -> str:
        return self._regex.pattern

    @property
    def num_undecided(self) -> int:
        """Number of trailing characters that may begin a match."""
        return self._position - min(self._begun.values(), default=self._position)

    def skip(self) -> int:
        """Count a character that the regex does not see; no match ends with it."""
        self._position += 1
        return 0

    def step(self, char: str) -> int:
        """Return the length of the longest match that ends with this character; 0 for none."""
        regex, begun, here = self._regex, self._begun, self._position
        for state in regex.anywhere if self._has_begun else regex.at_beginning:
            begun.setdefault(state, here)
        self._has_begun = True
        following: dict[int, int] = {}
        match = here + 1
        for state, start in begun.items():
            if not regex.tests[state](char):
                continue
            if state in regex.accepts:
                match = min(match, start)
            for after in regex.after[state]:
                following[after] = min(start, following.get(after, start))
        self._begun = following
        self._position = here + 1
        return self._position - match
