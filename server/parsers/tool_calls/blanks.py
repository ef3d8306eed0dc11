"""Line ends that only set calls apart are nobody's words."""

from server.parsers.message_parts import Content, Parser, Part, said


class WithoutBlanks:
    """Leaves out blanks right before a call, and after the last one if nothing else follows."""

    def __init__(self, inner: Parser) -> None:
        self._inner = inner
        self._blanks = ""  # kept back: what follows decides
        self._has_called = False

    def push(self, text: str) -> list[Part]:
        return self._without(self._inner.push(text))

    def flush(self) -> list[Part]:
        parts = self._without(self._inner.flush())
        return parts if self._has_called else [*parts, *said(self._blanks)]

    def _without(self, parts: list[Part]) -> list[Part]:
        kept: list[Part] = []
        for part in parts:
            if not isinstance(part, Content):
                self._has_called, self._blanks = True, ""
                kept.append(part)
                continue
            text = self._blanks + part.text
            words = text.rstrip()
            self._blanks = text[len(words) :]
            kept += said(words)
        return kept
