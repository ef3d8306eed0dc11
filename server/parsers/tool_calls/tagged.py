"""Calls between tags, with text before, between and after them."""

from collections.abc import Callable, Sequence

from server.parsers.message_parts import Part, ToolCall, num_undecided, said


class TaggedCalls:
    """`begin` CALLS `end`, any number of times; without an `end`, up to the next `begin`.

    read tells the calls in the text between, or None for what is none; that is said, tags and
    all. A call whose end is missing at the end of the answer is read all the same. is_quoted tells
    whether what follows a text would be inside a string: an end there is none.
    """

    def __init__(
        self,
        *,
        begin: str,
        end: str | None,
        read: Callable[[str], Sequence[ToolCall] | None],
        is_quoted: Callable[[str], bool],
    ) -> None:
        self._begin = begin
        self._end = end
        self._read = read
        self._is_quoted = is_quoted
        self._text = ""  # undecided; inside a call, what follows its beginning
        self._is_inside = False
        self._num_searched = 0  # leading characters of it in which no end begins

    def push(self, text: str) -> list[Part]:
        self._text += text
        parts: list[Part] = []
        while (more := self._advance()) is not None:
            parts += more
        return parts

    def flush(self) -> list[Part]:
        text, self._text = self._text, ""
        return self._calls(text, "") if self._is_inside else said(text)

    def _advance(self) -> list[Part] | None:
        """One tag further, or None where the text does not suffice."""
        return self._leave() if self._is_inside else self._enter()

    def _enter(self) -> list[Part] | None:
        before, tag, after = self._text.partition(self._begin)
        if tag:
            self._text, self._is_inside, self._num_searched = after, True, 0
            return said(before)
        cut = len(before) - num_undecided(before, self._begin)
        self._text = before[cut:]
        return said(before[:cut]) or None

    def _leave(self) -> list[Part] | None:
        end = self._end or self._begin
        at = self._text.find(end, self._num_searched)
        while at >= 0 and self._is_quoted(self._text[:at]):
            at = self._text.find(end, at + 1)
        if at < 0:
            self._num_searched = max(0, len(self._text) - len(end) + 1)
            return None
        inner, rest = self._text[:at], self._text[at:]
        self._is_inside = False
        self._text = rest[len(self._end) :] if self._end else rest
        return self._calls(inner, self._end or "")

    def _calls(self, inner: str, end: str) -> list[Part]:
        calls = self._read(inner)
        return list(calls) if calls else said(self._begin + inner + end)
