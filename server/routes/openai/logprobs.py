"""Builds `logprobs` and `prompt_logprobs` of one OpenAI choice, whole or chunk by chunk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine import TokenLogprob
from server.generation.deltas import CompletionOutput, Delta
from server.generation.input_processor import TokenizedRequest
from server.protocol.engine_options import LogprobOptions
from server.routes.logprobs import LogprobSerializer
from server.text.detokenizer import Decoder
from server.text.tokenizer import TextCodec


class ChoiceLogprobs:
    """Builds the log probabilities of one choice; keeps the text offset of a completion."""

    def __init__(
        self,
        tokenized: TokenizedRequest,
        *,
        serializer: LogprobSerializer,
        text: TextCodec,
        options: LogprobOptions | None,
        is_chat: bool,
        num_prompt_top: int | None = None,
    ) -> None:
        """num_prompt_top: likeliest tokens in prompt_logprobs; None: it is not requested."""
        self._tokenized = tokenized
        self._serializer = serializer
        self._options = options
        self._is_chat = is_chat
        self._num_prompt_top = num_prompt_top
        self._prompt_decoder = text.decoder()
        self._decoder = text.decoder(
            skip_special_tokens=tokenized.skip_special_tokens, kept_ids=tokenized.kept_ids
        )
        self._is_first = True
        self._has_prompt = False  # prompt_logprobs were returned
        self._offset = 0  # characters of whole tokens so far

    def of(self, output: CompletionOutput | Delta) -> Mapping[str, object] | None:
        """Return the log probabilities of new tokens; None without any, or if not requested."""
        if self._options is None or not (output.token_ids or output.prompt_logprobs):
            return None
        if self._is_chat:
            return self._serializer.chat(self._with_own_top(output.logprobs))
        prompt = self._prompt(output)
        own = [(e.token_id, e) for e in self._with_own_top(output.logprobs)]
        offsets = self._offsets(prompt, self._prompt_decoder) + self._offsets(own, self._decoder)
        return self._serializer.completion([*prompt, *own], offsets=offsets)

    def of_prompt(self, output: CompletionOutput | Delta) -> list[Any] | None:
        """Return `prompt_logprobs`, once; None before the first token, or if not requested."""
        if self._num_prompt_top is None or self._has_prompt or not _has_begun(output):
            return None
        self._has_prompt = True
        return self._serializer.prompt(output.prompt_logprobs, num_top=self._num_prompt_top)

    def _offsets(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], decoder: Decoder
    ) -> list[int]:
        """Return where each token begins in the text; a part of a character, where it begins."""
        offsets = []
        for token_id, _ in entries:
            offsets.append(self._offset)
            self._offset += len(decoder.push(token_id))
        return offsets

    def _prompt(self, output: CompletionOutput | Delta) -> list[tuple[int, TokenLogprob | None]]:
        """Return the entries of an echoed prompt, before the first tokens."""
        is_first, self._is_first = self._is_first, False
        if not is_first or self._options is None or self._options.prompt_from is None:
            return []
        return [
            (self._tokenized.prompt_ids[0], None),
            *((e.token_id, e) for e in self._with_own_top(output.prompt_logprobs)),
        ]

    def _with_own_top(self, entries: Sequence[TokenLogprob]) -> Sequence[TokenLogprob]:
        """Return entries as `logprobs` has them; prompt_logprobs may have more likely tokens."""
        assert self._options is not None, "logprobs that are not requested"
        num_top = self._options.num_top
        if self._num_prompt_top is None or self._num_prompt_top <= num_top:
            return entries
        return [replace(entry, top=entry.top[:num_top]) for entry in entries]


def _has_begun(output: CompletionOutput | Delta) -> bool:
    return bool(output.token_ids or output.prompt_logprobs) or output.finish is not None


NewLogprobs = Callable[[TokenizedRequest], ChoiceLogprobs]
