"""Turns one request's engine events into text deltas."""

import time

from engine import TokenEvent
from server.errors.api_errors import ApiError
from server.generation.deltas import Delta, delta_of, without_output
from server.generation.input_processor import TokenizedRequest
from server.generation.stop_strings import OutputText
from server.http.metrics import RequestTimer
from server.http.request_records import AbortedCompletion, RequestRecord
from server.structured_output.grammar_mask import GrammarMask


class OutputProcessor:
    """Times and records one request's events, and detokenizes them."""

    def __init__(
        self,
        tokenized: TokenizedRequest,
        *,
        text: OutputText,
        mask: GrammarMask | None,
        timer: RequestTimer,
        record: RequestRecord,
    ) -> None:
        """Create it when the request is submitted. record gets the completion at its end.

        mask is the token mask of the request's grammar, if it has one.
        """
        self._tokenized = tokenized
        self._text = text
        self._mask = mask
        self._timer = timer
        self._record = record
        self._submitted_at = time.time()
        self._echo = tokenized.echo
        self._seconds = 0.0
        self._num_tokens = 0
        self.is_finished = False

    def observe(self, event: TokenEvent) -> None:
        """Time and count an event. Call it with every event, in order."""
        self._seconds = self._timer.observe(event)
        self._num_tokens += len(event.token_ids)
        if event.finish is not None:
            self._record.add(self._submitted_at, event.finish)
            self.is_finished = True

    def abort(self) -> None:
        """Record that no more events will come."""
        if not self.is_finished:
            num_prompt_tokens = len(self._tokenized.prompt_ids)
            self._record.aborted.append(AbortedCompletion(num_prompt_tokens, self._num_tokens))

    def delta(self, event: TokenEvent) -> Delta:
        """Return the text delta of an event, of a part of one, or of all events joined.

        Raises ApiError where the grammar can no longer be followed.
        """
        self._check_grammar()
        echo, self._echo = self._echo, ""
        if self._tokenized.scores_only:
            event = without_output(event)
        return delta_of(
            event, self._text, self._seconds, echo=echo, keeps_stop=self._tokenized.keeps_stop
        )

    def _check_grammar(self) -> None:
        grammar = self._tokenized.grammar
        if grammar is not None and self._mask is not None and self._mask.error is not None:
            raise ApiError(
                f"'{grammar.field}' could not be followed to its end: {self._mask.error}",
                param=grammar.field,
                code="grammar_too_complex",
            )
