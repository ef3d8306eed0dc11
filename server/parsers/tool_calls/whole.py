"""Answers that are calls as a whole, or are none."""

from collections.abc import Callable, Sequence

from server.parsers.message_parts import Part, ToolCall, said


class WholeAnswer:
    """An answer that begins like a call is kept back to its end, and read then.

    read tells its calls, or None for what is none; then all of it was said.
    """

    def __init__(
        self, *, begins: Sequence[str], read: Callable[[str], Sequence[ToolCall] | None]
    ) -> None:
        self._begins = tuple(begins)
        self._read = read
        self._pieces: list[str] = []
        self._head = ""  # the beginning, until it is decided what it is
        self._is_call: bool | None = None

    def push(self, text: str) -> list[Part]:
        if self._is_call is False:
            return said(text)
        self._pieces.append(text)
        if self._is_call:
            return []
        self._head += text
        self._is_call = self._decide(self._head.lstrip())
        return self._take_back() if self._is_call is False else []

    def flush(self) -> list[Part]:
        if self._is_call:
            calls = self._read("".join(self._pieces))
            if calls:
                return list(calls)
        return self._take_back()

    def _decide(self, head: str) -> bool | None:
        if head.startswith(self._begins):
            return True
        return None if any(begin.startswith(head) for begin in self._begins) else False

    def _take_back(self) -> list[Part]:
        text = "".join(self._pieces)
        self._pieces.clear()
        return said(text)
