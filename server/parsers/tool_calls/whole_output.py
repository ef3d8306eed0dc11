"""Parses outputs that consist of tool calls only, or contain none."""

from collections.abc import Callable, Sequence

from server.parsers.message_parts import Part, ToolCall, content_parts


class WholeOutputCalls:
    """Withholds an output that begins like a call, and parses it at its end.

    parse returns the calls. If it returns None, all of the output is content.
    """

    def __init__(
        self, *, begins: Sequence[str], parse: Callable[[str], Sequence[ToolCall] | None]
    ) -> None:
        self._begins = tuple(begins)
        self._parse = parse
        self._pieces: list[str] = []
        self._head = ""  # the beginning, while undecided
        self._is_call: bool | None = None

    def push(self, text: str) -> list[Part]:
        if self._is_call is False:
            return content_parts(text)
        self._pieces.append(text)
        if self._is_call:
            return []
        self._head += text
        self._is_call = self._begins_call(self._head.lstrip())
        return self._as_content() if self._is_call is False else []

    def flush(self) -> list[Part]:
        if self._is_call:
            calls = self._parse("".join(self._pieces))
            if calls:
                return list(calls)
        return self._as_content()

    def _begins_call(self, head: str) -> bool | None:
        if head.startswith(self._begins):
            return True
        return None if any(begin.startswith(head) for begin in self._begins) else False

    def _as_content(self) -> list[Part]:
        text = "".join(self._pieces)
        self._pieces.clear()
        return content_parts(text)
