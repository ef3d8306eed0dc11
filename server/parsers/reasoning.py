"""Thoughts apart from the answer, for models that put them between tags first."""

from server.parsers.message_parts import Parser, Part, Reasoning, num_undecided

OPEN, CLOSE = "<think>", "</think>"


class ReasoningParser:
    """Thoughts stand between <think> and </think>, and only at the beginning.

    is_open says that the prompt has ended with the opening tag already. Blanks around thoughts
    belong to nobody; what follows them is left to another parser. An answer that ends before the
    closing tag is all thought.
    """

    def __init__(self, *, rest: Parser, is_open: bool) -> None:
        self._rest = rest
        self._text = ""  # undecided
        self._step = self._think if is_open else self._begin
        self._has_thought = False

    def push(self, text: str) -> list[Part]:
        self._text += text
        return self._step()

    def flush(self) -> list[Part]:
        text, self._text = self._text, ""
        if self._step == self._think:
            return [*self._thought(text.rstrip()), *self._rest.flush()]
        left = text if self._step == self._begin else text.lstrip()
        return [*self._rest.push(left), *self._rest.flush()]

    def _begin(self) -> list[Part]:
        text = self._text.lstrip()
        if text.startswith(OPEN):
            self._text, self._step = text[len(OPEN) :], self._think
            return self._think()
        if OPEN.startswith(text):
            return []
        self._step = self._speak
        return self._speak()

    def _think(self) -> list[Part]:
        thought, tag, after = self._text.partition(CLOSE)
        if tag:
            self._text, self._step = after, self._pause
            return [*self._thought(thought.rstrip()), *self._pause()]
        certain = thought[: len(thought) - num_undecided(thought, CLOSE)].rstrip()
        self._text = thought[len(certain) :]
        return self._thought(certain)

    def _pause(self) -> list[Part]:
        self._text = self._text.lstrip()
        if not self._text:
            return []
        self._step = self._speak
        return self._speak()

    def _speak(self) -> list[Part]:
        text, self._text = self._text, ""
        return self._rest.push(text)

    def _thought(self, text: str) -> list[Part]:
        if not self._has_thought:
            text = text.lstrip()
        self._has_thought = self._has_thought or bool(text)
        return [Reasoning(text)] if text else []
