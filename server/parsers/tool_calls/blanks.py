"""Drops whitespace that only separates tool calls."""

from server.parsers.message_parts import Content, Parser, Part, content_parts


class WithoutBlanks:
    """Drops whitespace before a call, and after the last call at the end of the output."""

    def __init__(self, inner: Parser) -> None:
        self._inner = inner
        self._blanks = ""  # withheld until the next part
        self._has_calls = False

    def push(self, text: str) -> list[Part]:
        return self._without(self._inner.push(text))

    def flush(self) -> list[Part]:
        parts = self._without(self._inner.flush())
        return parts if self._has_calls else [*parts, *content_parts(self._blanks)]

    def _without(self, parts: list[Part]) -> list[Part]:
        kept: list[Part] = []
        for part in parts:
            if not isinstance(part, Content):
                self._has_calls, self._blanks = True, ""
                kept.append(part)
                continue
            text = self._blanks + part.text
            stripped = text.rstrip()
            self._blanks = text[len(stripped) :]
            kept += content_parts(stripped)
        return kept
