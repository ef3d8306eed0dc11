"""One answer on its way from the engine's events to whoever tells of it."""

import time

from engine import TokenEvent
from server.errors.api_errors import ApiError
from server.generation.deltas import Delta, delta_of
from server.generation.input_processor import TokenizedRequest
from server.generation.stop_strings import AnswerText
from server.http.metrics import AnswerClock
from server.http.request_records import GivenUp, RequestRecord
from server.structured_output.grammar_mask import GrammarMask


class OutputProcessor:
    """Times an answer's events, and reads what they add to its text."""

    def __init__(
        self,
        ask: TokenizedRequest,
        *,
        text: AnswerText,
        mask: GrammarMask | None,
        clock: AnswerClock,
        record: RequestRecord,
    ) -> None:
        """Made when the engine is asked. Where the answer ends, it is put on the record.

        mask is what holds the answer to the ask's grammar, if that has one.
        """
        self._ask = ask
        self._text = text
        self._mask = mask
        self._clock = clock
        self._record = record
        self._asked_at = time.time()
        self._echo = ask.echo
        self._seconds = 0.0
        self._num_tokens = 0
        self.is_over = False

    def note(self, event: TokenEvent) -> None:
        """Every event comes here, in order."""
        self._seconds = self._clock.saw(event)
        self._num_tokens += len(event.token_ids)
        if event.finish is not None:
            self._record.add(self._asked_at, event.finish)
            self.is_over = True

    def give_up(self) -> None:
        """No more will be heard."""
        if not self.is_over:
            self._record.given_up.append(GivenUp(len(self._ask.prompt_ids), self._num_tokens))

    def delta(self, event: TokenEvent) -> Delta:
        """Of the latest event, of a part of it, or of all events joined.

        Raises ApiError where the answer can no longer keep to its grammar.
        """
        self._check_grammar()
        echo, self._echo = self._echo, ""
        return delta_of(event, self._text, self._seconds, echo=echo)

    def _check_grammar(self) -> None:
        grammar = self._ask.grammar
        if grammar is not None and self._mask is not None and self._mask.error is not None:
            raise ApiError(
                f"'{grammar.field}' could not be followed to its end: {self._mask.error}",
                param=grammar.field,
                code="grammar_too_complex",
            )
