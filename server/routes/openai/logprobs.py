"""Builds the `logprobs` object of one OpenAI choice, whole or chunk by chunk."""

from collections.abc import Callable, Mapping

from engine import TokenLogprob
from server.generation.deltas import CompletionOutput, Delta
from server.generation.input_processor import TokenizedRequest
from server.protocol.engine_options import LogprobOptions
from server.routes.logprobs import LogprobSerializer


class ChoiceLogprobs:
    """Builds the log probabilities of one choice; counts the text offset of a completion."""

    def __init__(
        self,
        tokenized: TokenizedRequest,
        *,
        serializer: LogprobSerializer,
        options: LogprobOptions | None,
        is_chat: bool,
    ) -> None:
        self._tokenized = tokenized
        self._serializer = serializer
        self._options = options
        self._is_chat = is_chat
        self._is_first = True
        self._offset = 0

    def of(self, output: CompletionOutput | Delta) -> Mapping[str, object] | None:
        """Return the log probabilities of new tokens; None without any, or if not requested."""
        if self._options is None or not output.token_ids:
            return None
        if self._is_chat:
            return self._serializer.chat(output.logprobs)
        entries = [*self._prompt(output), *((e.token_id, e) for e in output.logprobs)]
        logprobs = self._serializer.completion(entries, offset=self._offset)
        self._offset += self._serializer.text_len([token_id for token_id, _ in entries])
        return logprobs

    def _prompt(self, output: CompletionOutput | Delta) -> list[tuple[int, TokenLogprob | None]]:
        """Return the entries of an echoed prompt, before the first tokens."""
        is_first, self._is_first = self._is_first, False
        if not is_first or self._options is None or self._options.prompt_from is None:
            return []
        return [
            (self._tokenized.prompt_ids[0], None),
            *((entry.token_id, entry) for entry in output.prompt_logprobs),
        ]


NewLogprobs = Callable[[TokenizedRequest], ChoiceLogprobs]
