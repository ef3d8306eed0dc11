"""Separates reasoning between <think> tags from the rest of the output."""

from server.parsers.message_parts import Parser, Part, Reasoning, partial_tag_len

OPEN, CLOSE = "<think>", "</think>"


class ReasoningParser:
    """Parses reasoning at the beginning of an output; another parser handles the rest.

    is_open: the prompt ends with the opening tag. Whitespace around reasoning is dropped. An
    output without the closing tag is all reasoning.
    """

    def __init__(self, *, rest: Parser, is_open: bool) -> None:
        self._rest = rest
        self._text = ""  # undecided
        self._state = self._in_reasoning if is_open else self._before_reasoning
        self._has_reasoning = False

    def push(self, text: str) -> list[Part]:
        self._text += text
        return self._state()

    def flush(self) -> list[Part]:
        text, self._text = self._text, ""
        if self._state == self._in_reasoning:
            return [*self._reasoning(text.rstrip()), *self._rest.flush()]
        left = text if self._state == self._before_reasoning else text.lstrip()
        return [*self._rest.push(left), *self._rest.flush()]

    def _before_reasoning(self) -> list[Part]:
        text = self._text.lstrip()
        if text.startswith(OPEN):
            self._text, self._state = text[len(OPEN) :], self._in_reasoning
            return self._in_reasoning()
        if OPEN.startswith(text):
            return []
        self._state = self._in_rest
        return self._in_rest()

    def _in_reasoning(self) -> list[Part]:
        reasoning, tag, after = self._text.partition(CLOSE)
        if tag:
            self._text, self._state = after, self._after_reasoning
            return [*self._reasoning(reasoning.rstrip()), *self._after_reasoning()]
        certain = reasoning[: len(reasoning) - partial_tag_len(reasoning, CLOSE)].rstrip()
        self._text = reasoning[len(certain) :]
        return self._reasoning(certain)

    def _after_reasoning(self) -> list[Part]:
        self._text = self._text.lstrip()
        if not self._text:
            return []
        self._state = self._in_rest
        return self._in_rest()

    def _in_rest(self) -> list[Part]:
        text, self._text = self._text, ""
        return self._rest.push(text)

    def _reasoning(self, text: str) -> list[Part]:
        if not self._has_reasoning:
            text = text.lstrip()
        self._has_reasoning = self._has_reasoning or bool(text)
        return [Reasoning(text)] if text else []
