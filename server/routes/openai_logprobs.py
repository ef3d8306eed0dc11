"""Log probabilities of one choice in the form of the OpenAI APIs, whole or as they come."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine import TokenLogprob
from server.generation.deltas import CompletionOutput, Delta
from server.generation.input_processor import TokenizedRequest
from server.protocol.engine_options import LogprobOptions
from server.routes.logprobs import LogprobForms


@dataclass(frozen=True, slots=True)
class LogprobFormatter:
    """What a request asks for; `new` is for one choice."""

    forms: LogprobForms
    asked: LogprobOptions | None

    def new(self, ask: TokenizedRequest, *, in_chat_form: bool) -> "ChoiceLogprobs":
        return ChoiceLogprobs(self, ask, in_chat_form=in_chat_form)


class ChoiceLogprobs:
    """Remembers how many characters of a completion's tokens have been told."""

    def __init__(
        self, teller: LogprobFormatter, ask: TokenizedRequest, *, in_chat_form: bool
    ) -> None:
        self._forms = teller.forms
        self._asked = teller.asked
        self._ask = ask
        self._in_chat_form = in_chat_form
        self._is_first = True
        self._offset = 0

    def of(self, gained: CompletionOutput | Delta) -> Mapping[str, object] | None:
        """None if nothing was asked for, or there is nothing new."""
        if self._asked is None or not gained.token_ids:
            return None
        if self._in_chat_form:
            return self._forms.chat(gained.logprobs)
        entries = [*self._prompt(gained), *((e.token_id, e) for e in gained.logprobs)]
        told = self._forms.completion(entries, offset=self._offset)
        self._offset += self._forms.length([token_id for token_id, _ in entries])
        return told

    def _prompt(self, gained: CompletionOutput | Delta) -> list[tuple[int, TokenLogprob | None]]:
        """The prompt's entries, with the first tokens of an answer that echoes it."""
        is_first, self._is_first = self._is_first, False
        if not is_first or self._asked is None or self._asked.prompt_from is None:
            return []
        return [
            (self._ask.prompt_ids[0], None),
            *((entry.token_id, entry) for entry in gained.prompt_logprobs),
        ]
