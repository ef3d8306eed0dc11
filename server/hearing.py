"""One answer on its way from the engine's events to whoever tells of it."""

from collections.abc import Callable

from engine import TokenEvent
from server.asking import Ask
from server.deltas import Cut, Delta, delta_of
from server.errors import ApiError
from server.grammars.following import GrammarMask
from server.metrics import AnswerClock
from server.stops import AnswerText


class Hearing:
    """Hears an answer's events; what they add up to is told, a delta at a time."""

    def __init__(
        self,
        ask: Ask,
        *,
        text: AnswerText,
        mask: GrammarMask | None,
        clock: AnswerClock,
        cut: Cut,
        tell: Callable[[Delta], None],
    ) -> None:
        """mask is what holds the answer to the ask's grammar, if that has one."""
        self._ask = ask
        self._text = text
        self._mask = mask
        self._clock = clock
        self._cut = cut
        self._tell = tell
        self._echo = ask.echo
        self.has_begun = False
        self.is_over = False

    def hear(self, event: TokenEvent) -> None:
        """Raises ApiError where the answer can no longer keep to its grammar."""
        self.has_begun = True
        self._check_grammar()
        seconds = self._clock.saw(event)
        for part in self._cut(event):
            echo, self._echo = self._echo, ""
            self._tell(delta_of(part, self._text, seconds, echo=echo))
        self.is_over = event.finish is not None

    def _check_grammar(self) -> None:
        grammar = self._ask.grammar
        if grammar is not None and self._mask is not None and self._mask.error is not None:
            raise ApiError(
                f"'{grammar.field}' could not be followed to its end: {self._mask.error}",
                param=grammar.field,
                code="grammar_too_complex",
            )
