"""From a prompt and its sampling fields to what the engine is asked, or a refusal with numbers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine import GREEDY_BELOW, EngineInfo, EngineSamplingParams
from server.errors.api_errors import ApiError
from server.options import NEUTRAL_SAMPLING, ServerOptions
from server.protocol.common import MAX_PROMPTS, Message, SamplingFields
from server.protocol.engine_options import LogprobOptions
from server.structured_output.compiler import CompiledGrammar, GrammarCompiler
from server.structured_output.output_grammar import OutputGrammar
from server.text.tokenizer import NO_EXTRAS, ChatExtras, ChatTemplateError, TextCodec

_UNIFORM_ABOVE = 1e30  # one so large that nothing is left of a logit; float32 ends at 3e38


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """One prompt on its way to the engine.

    names are what /abort_request may call it; the first is the one shown to the client.
    """

    names: tuple[str, ...]
    prompt_ids: tuple[int, ...]
    params: EngineSamplingParams
    stops: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    kept_ids: frozenset[int] = frozenset()  # special tokens that are not skipped all the same
    choice: int = 0  # of the several answers to one prompt
    echo: str = ""  # text that is told before the answer's own
    grammar: CompiledGrammar | None = None  # that the answer keeps to

    def choices(self, count: int) -> "list[TokenizedRequest]":
        """The same for each of several answers to the prompt; each has a name of its own."""
        if count == 1:
            return [self]
        return [
            replace(self, names=(f"{self.names[0]}-{i}", *self.names), choice=i)
            for i in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Field:
    """How a client calls the fields that a refusal may have to name."""

    prompt: str  # "messages", "input_ids.3", ...
    sampling_prefix: str = ""  # "sampling_params." where the sampling fields are nested


def check_num_answers(count: int, *, param: str) -> None:
    """Raises ApiError for more answers than one request may ask for."""
    if count > MAX_PROMPTS:
        raise ApiError(
            f"'{param}' must leave at most {MAX_PROMPTS} answers of one request, prompts times n; "
            f"found {count}",
            param=param,
        )


class InputProcessor:
    """Knows the limits. Every refusal is an ApiError that names field, found and accepted."""

    def __init__(self, *, text: TextCodec, info: EngineInfo, options: ServerOptions) -> None:
        self._text = text
        self._info = info
        self._options = options
        self._defaults = {**NEUTRAL_SAMPLING, **options.default_sampling}
        self._grammars = GrammarCompiler(
            text=text,
            vocab_size=info.vocab_size,
            eos_ids=info.eos_token_ids,
            timeout_s=options.grammar_timeout_s,
        )

    async def ask(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        fields: SamplingFields,
        *,
        names: tuple[str, ...],
        field: Field,
        extras: ChatExtras = NO_EXTRAS,
        kept_ids: frozenset[int] = frozenset(),
        logprobs: LogprobOptions | None = None,
    ) -> TokenizedRequest:
        prompt_ids = await self.encode(prompt, field=field, extras=extras)
        if not prompt_ids:
            raise ApiError(
                f"'{field.prompt}' must have at least one token; found none", param=field.prompt
            )
        max_new_tokens = self._token_limit(fields, len(prompt_ids), field)
        return TokenizedRequest(
            names=names,
            prompt_ids=prompt_ids,
            params=self._sampling(fields, max_new_tokens, field, logprobs),
            stops=fields.stops,
            skip_special_tokens=fields.skip_special_tokens is not False,
            kept_ids=kept_ids,
        )

    async def keeping_to(
        self, ask: TokenizedRequest, frame: OutputGrammar | None
    ) -> TokenizedRequest:
        """The same with an answer that keeps to a grammar; others go on while it is compiled."""
        if frame is None:
            return ask
        return replace(ask, grammar=await self._grammars.compile(frame))

    async def encode(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        *,
        field: Field,
        add_special_tokens: bool = True,
        extras: ChatExtras = NO_EXTRAS,
    ) -> tuple[int, ...]:
        """Token ids of a text, of a chat, or of token ids. Long texts do not hold up others."""
        if isinstance(prompt, str):
            ids = await asyncio.to_thread(
                self._text.encode, prompt, add_special_tokens=add_special_tokens
            )
        elif isinstance(prompt[0], Message):
            ids = await self._encode_chat(prompt, field, extras)
        else:
            ids = [token for token in prompt if isinstance(token, int)]
            self.check_vocabulary(ids, param=field.prompt)
        return tuple(ids)

    def check_vocabulary(self, token_ids: Sequence[int], *, param: str) -> None:
        """Raises ApiError for an id that the model has no token for."""
        top = max(token_ids, default=0)
        if top >= self._info.vocab_size:
            raise ApiError(
                f"'{param}' must be token ids from 0 to {self._info.vocab_size - 1}; found {top}",
                param=param,
            )

    async def _encode_chat(
        self, messages: Sequence[int] | Sequence[Message], field: Field, extras: ChatExtras
    ) -> list[int]:
        plain = [message.plain() for message in messages if isinstance(message, Message)]
        try:
            return await asyncio.to_thread(self._text.encode_chat, plain, extras)
        except ChatTemplateError as error:
            raise ApiError(str(error), param=field.prompt) from error

    def _token_limit(self, fields: SamplingFields, prompt_len: int, field: Field) -> int:
        """max_new_tokens: as asked, or the default cut to what fits."""
        context, cap = self._info.served_max_len, self._options.max_tokens_cap
        room = context - prompt_len
        if room < 1:
            raise ApiError(
                f"this model's maximum context length is {context} tokens; the prompt has "
                f"{prompt_len}, and at most {context - 1} leave room for an answer",
                param=field.prompt,
                code="context_length_exceeded",
            )
        name, asked = fields.token_limit()
        if asked is None:
            limits = (room, cap, self._options.default_max_tokens)
            return min(limit for limit in limits if limit is not None)
        param = field.sampling_prefix + name
        if cap is not None and asked > cap:
            raise ApiError(
                f"'{param}' must be at most {cap}, this server's limit; found {asked}", param=param
            )
        if asked > room:
            raise ApiError(
                f"this model's maximum context length is {context} tokens; the prompt has "
                f"{prompt_len} and '{param}' asks for {asked}, {prompt_len + asked} together: "
                f"shorten the prompt or ask for at most {room}",
                param=param,
                code="context_length_exceeded",
            )
        return asked

    def _sampling(
        self,
        fields: SamplingFields,
        max_new_tokens: int,
        field: Field,
        logprobs: LogprobOptions | None,
    ) -> EngineSamplingParams:
        stop_token_ids = fields.stop_token_ids or []
        self.check_vocabulary(stop_token_ids, param=f"{field.sampling_prefix}stop_token_ids")
        asked = fields.engine_options()
        self.check_vocabulary(
            [token_id for token_id, _ in asked.logit_bias],
            param=f"{field.sampling_prefix}logit_bias",
        )
        name, min_new_tokens = asked.min_tokens
        if min_new_tokens > max_new_tokens:
            param = field.sampling_prefix + name
            raise ApiError(
                f"'{param}' must be at most {max_new_tokens}, the longest this answer can be; "
                f"found {min_new_tokens}",
                param=param,
            )
        temperature = self._number(fields.temperature, "temperature")
        top_k = int(self._number(fields.top_k, "top_k"))
        return EngineSamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=min(temperature, _UNIFORM_ABOVE) if temperature >= GREEDY_BELOW else 0.0,
            top_k=top_k if top_k < self._info.vocab_size else -1,
            top_p=self._number(fields.top_p, "top_p"),
            min_p=self._number(fields.min_p, "min_p"),
            seed=fields.asked_seed(),
            stop_token_ids=frozenset(stop_token_ids),
            ignore_eos=bool(fields.ignore_eos),
            min_new_tokens=min_new_tokens,
            repetition_penalty=self._number(asked.repetition_penalty, "repetition_penalty"),
            presence_penalty=asked.presence_penalty or 0.0,
            frequency_penalty=asked.frequency_penalty or 0.0,
            logit_bias=asked.logit_bias,
            num_logprobs=logprobs.num_top if logprobs is not None else None,
            prompt_logprobs_from=logprobs.prompt_from if logprobs is not None else None,
        )

    def _number(self, asked: float | None, name: str) -> float:
        return self._defaults[name] if asked is None else asked
