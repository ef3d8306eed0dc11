"""Parses tool calls between tags, with text around them."""

from collections.abc import Callable, Sequence

from server.parsers.message_parts import Part, ToolCall, content_parts, partial_tag_len


class TaggedCalls:
    """Parses `begin` CALLS `end`, repeatedly; without an `end`, up to the next `begin`.

    parse returns the calls of the text between the tags. If it returns None, the text with its
    tags is content. The last call may lack its end. is_quoted returns whether a text ends inside a
    string, where an end tag does not count.
    """

    def __init__(
        self,
        *,
        begin: str,
        end: str | None,
        parse: Callable[[str], Sequence[ToolCall] | None],
        is_quoted: Callable[[str], bool],
    ) -> None:
        self._begin = begin
        self._end = end
        self._parse = parse
        self._is_quoted = is_quoted
        self._text = ""  # undecided; inside a call: the text after `begin`
        self._is_inside = False
        self._num_searched = 0  # leading characters of _text without an end tag

    def push(self, text: str) -> list[Part]:
        self._text += text
        parts: list[Part] = []
        while (more := self._advance()) is not None:
            parts += more
        return parts

    def flush(self) -> list[Part]:
        text, self._text = self._text, ""
        return self._calls(text, "") if self._is_inside else content_parts(text)

    def _advance(self) -> list[Part] | None:
        """Parse up to the next tag; None if more text is needed."""
        return self._leave() if self._is_inside else self._enter()

    def _enter(self) -> list[Part] | None:
        before, tag, after = self._text.partition(self._begin)
        if tag:
            self._text, self._is_inside, self._num_searched = after, True, 0
            return content_parts(before)
        cut = len(before) - partial_tag_len(before, self._begin)
        self._text = before[cut:]
        return content_parts(before[:cut]) or None

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
        calls = self._parse(inner)
        return list(calls) if calls else content_parts(self._begin + inner + end)
