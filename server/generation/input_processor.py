"""Validates, tokenizes and completes one request; raises ApiError with the field and the limit."""

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
from server.text.chat_template import NO_EXTRAS, ChatExtras, ChatTemplateError
from server.text.stop_regex import StopRegex
from server.text.tokenizer import TextCodec

_MAX_TEMPERATURE = 1e30  # the distribution is uniform; float32 ends at 3e38


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """One prompt with its parameters, ready for the engine.

    /abort_request accepts each of the names; responses show the first one.
    """

    names: tuple[str, ...]
    prompt_ids: tuple[int, ...]
    params: EngineSamplingParams
    stops: tuple[str, ...] = ()
    stop_regexes: tuple[StopRegex, ...] = ()
    skip_special_tokens: bool = True
    kept_ids: frozenset[int] = frozenset()  # special tokens that the text keeps
    choice: int = 0  # index among the n choices of one prompt
    echo: str = ""  # text before the generated text
    grammar: CompiledGrammar | None = None  # of the output
    opens_objects: bool = False  # of schemas, for properties that they do not name
    keeps_stop: bool = False  # the text ends with the stop
    priority: int = 0  # among requests
    scores_only: bool = False  # the prompt's log probabilities are all that is requested
    cache_salt: str = ""  # see engine.Request, as for owner
    owner: str = ""

    def choices(self, count: int) -> "list[TokenizedRequest]":
        """Return one request for each of n choices; each has another first name."""
        if count == 1:
            return [self]
        return [
            replace(self, names=(f"{self.names[0]}-{i}", *self.names), choice=i)
            for i in range(count)
        ]


@dataclass(frozen=True, slots=True)
class FieldNames:
    """Names of request fields for error messages."""

    prompt: str  # "messages", "input_ids.3", ...
    sampling_prefix: str = ""  # "sampling_params." where the sampling fields are nested


def check_num_choices(count: int, *, param: str) -> None:
    """Raise ApiError for more choices than one HTTP request may have."""
    if count > MAX_PROMPTS:
        raise ApiError(
            f"'{param}' must leave at most {MAX_PROMPTS} choices, prompts times n; found {count}",
            param=param,
        )


class InputProcessor:
    """Turns prompts and sampling fields into TokenizedRequests.

    Raises ApiError with the field, what was found and what is accepted.
    """

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

    async def process(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        fields: SamplingFields,
        *,
        names: tuple[str, ...],
        field: FieldNames,
        extras: ChatExtras = NO_EXTRAS,
        kept_ids: frozenset[int] = frozenset(),
        logprobs: LogprobOptions | None = None,
    ) -> TokenizedRequest:
        """Tokenize one prompt and complete its sampling parameters. Raises ApiError.

        kept_ids: special tokens that stay in the text. field: names for error messages.
        """
        prompt_ids = await self.encode(prompt, field=field, extras=extras)
        if not prompt_ids:
            raise ApiError(
                f"'{field.prompt}' must have at least one token; found none", param=field.prompt
            )
        max_new_tokens = self._token_limit(fields, len(prompt_ids), field)
        opens_objects = fields.additional_properties
        if opens_objects is None:
            opens_objects = self._options.additional_properties
        return TokenizedRequest(
            names=names,
            prompt_ids=prompt_ids,
            params=self._sampling(fields, max_new_tokens, field, logprobs),
            stops=fields.stops,
            stop_regexes=fields.stop_regexes,
            skip_special_tokens=fields.skip_special_tokens is not False,
            kept_ids=kept_ids,
            opens_objects=opens_objects,
            keeps_stop=fields.keeps_stop,
            priority=fields.engine_priority,
            scores_only=fields.token_limit()[1] == 0,
            cache_salt=fields.salt(),
        )

    async def with_grammar(
        self, tokenized: TokenizedRequest, grammar: OutputGrammar | None
    ) -> TokenizedRequest:
        """Return the request with a compiled grammar. Compiles off the event loop."""
        if grammar is None:
            return tokenized
        grammar = replace(grammar, opens_objects=tokenized.opens_objects)
        return replace(tokenized, grammar=await self._grammars.compile(grammar))

    async def encode(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        *,
        field: FieldNames,
        add_special_tokens: bool = True,
        extras: ChatExtras = NO_EXTRAS,
    ) -> tuple[int, ...]:
        """Return the token ids of a text, a chat or token ids. Tokenizes off the event loop."""
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
        """Raise ApiError for an id outside the vocabulary."""
        largest = max(token_ids, default=0)
        if largest >= self._info.vocab_size:
            raise ApiError(
                f"'{param}' must be token ids from 0 to {self._info.vocab_size - 1}; "
                f"found {largest}",
                param=param,
            )

    async def _encode_chat(
        self, messages: Sequence[int] | Sequence[Message], field: FieldNames, extras: ChatExtras
    ) -> list[int]:
        chat = [message.for_template() for message in messages if isinstance(message, Message)]
        try:
            return await asyncio.to_thread(
                self._text.encode_chat,
                chat,
                extras,
                special_tokens_in_content=self._options.special_tokens_in_content,
            )
        except ChatTemplateError as error:
            raise ApiError(str(error), param=field.prompt) from error

    def _token_limit(self, fields: SamplingFields, prompt_len: int, field: FieldNames) -> int:
        """Return max_new_tokens: the request's, or the default limited to the context length."""
        context, cap = self._info.served_max_len, self._options.max_tokens_cap
        room = context - prompt_len
        if room < 1:
            raise ApiError(
                f"this model's maximum context length is {context} tokens; the prompt has "
                f"{prompt_len}, and at most {context - 1} leave room for output",
                param=field.prompt,
                code="context_length_exceeded",
            )
        name, requested = fields.token_limit()
        if requested == 0:
            return 1  # the engine computes a prompt to its first output token
        if requested is None:
            default = self._options.default_max_tokens
            own = fields.default_limit if default == "auto" else None
            limits = (room, cap, own if isinstance(default, str) else default)
            return min(limit for limit in limits if limit is not None)
        param = field.sampling_prefix + name
        if cap is not None and requested > cap:
            raise ApiError(
                f"'{param}' must be at most {cap}, this server's limit; found {requested}",
                param=param,
            )
        if requested > room:
            raise ApiError(
                f"this model's maximum context length is {context} tokens; the prompt has "
                f"{prompt_len} and '{param}' is {requested}, {prompt_len + requested} together: "
                f"shorten the prompt or request at most {room}",
                param=param,
                code="context_length_exceeded",
            )
        return requested

    def _sampling(
        self,
        fields: SamplingFields,
        max_new_tokens: int,
        field: FieldNames,
        logprobs: LogprobOptions | None,
    ) -> EngineSamplingParams:
        # An id outside the vocabulary is never generated: clients send one list to many models.
        vocab_size = self._info.vocab_size
        stop_token_ids = [i for i in fields.stop_token_ids or [] if i < vocab_size]
        options = fields.engine_options()
        self.check_vocabulary(
            [token_id for token_id, _ in options.logit_bias],
            param=f"{field.sampling_prefix}logit_bias",
        )
        logprob_token_ids = logprobs.token_ids if logprobs is not None else ()
        self.check_vocabulary(logprob_token_ids, param="token_ids_logprob")
        name, min_new_tokens = options.min_tokens
        if min_new_tokens > max_new_tokens:
            param = field.sampling_prefix + name
            raise ApiError(
                f"'{param}' must be at most {max_new_tokens}, the most this output can have; "
                f"found {min_new_tokens}",
                param=param,
            )
        temperature = self._number(fields.temperature, "temperature")
        top_k = int(self._number(fields.top_k, "top_k"))
        return EngineSamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=min(temperature, _MAX_TEMPERATURE) if temperature >= GREEDY_BELOW else 0.0,
            top_k=top_k if top_k < self._info.vocab_size else -1,
            top_p=self._number(fields.top_p, "top_p"),
            min_p=self._number(fields.min_p, "min_p"),
            seed=fields.effective_seed(),
            stop_token_ids=frozenset(stop_token_ids),
            ignore_eos=bool(fields.ignore_eos),
            min_new_tokens=min_new_tokens,
            repetition_penalty=self._number(options.repetition_penalty, "repetition_penalty"),
            presence_penalty=options.presence_penalty or 0.0,
            frequency_penalty=options.frequency_penalty or 0.0,
            logit_bias=options.logit_bias,
            num_draft_tokens=options.num_draft_tokens,
            logprob_token_ids=logprob_token_ids,
            num_logprobs=logprobs.num_top if logprobs is not None else None,
            prompt_logprobs_from=logprobs.prompt_from if logprobs is not None else None,
        )

    def _number(self, value: float | None, name: str) -> float:
        return self._defaults[name] if value is None else value
