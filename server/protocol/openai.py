"""Defines the bodies of the OpenAI routes."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self, cast

from pydantic import Discriminator, Field, Tag, model_validator

from engine import MAX_TOP_LOGPROBS
from server.errors.validation_errors import field_error
from server.protocol.base import Body, Text, item_count
from server.protocol.common import (
    MAX_PROMPTS,
    UNSERVED_EXTRAS,
    Messages,
    Prompt,
    PromptIds,
    RequestFields,
    TemplateKwargs,
    check_continuation,
)
from server.protocol.engine_options import LogprobOptions
from server.protocol.sampling_options import OptionFields, check_return_rounds
from server.protocol.structured_output import OpenAIGrammarFields
from server.protocol.tools import ToolFields

_NO_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "spaces_between_special_tokens",
    }
)

_UNSERVED: Mapping[str, tuple[object, ...]] = {
    **UNSERVED_EXTRAS,
    "allowed_token_ids": (),
    "bad_words": ([],),
    "length_penalty": (1,),
    "return_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_weight_versions": (False,),
    "routed_experts_prompt_start": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}


class StreamOptions(Body):
    IGNORED = frozenset({"include_obfuscation"})

    include_usage: bool = False
    continuous_usage_stats: bool = False  # usage so far in every chunk, as in vLLM
    token_by_token: bool = False  # one chunk per token


class OpenAIBody(OptionFields, OpenAIGrammarFields, RequestFields):
    """Fields of both completions and chat completions.

    stream_options and return_rounds need stream. At most one field sets a grammar.
    """

    IGNORED = _NO_EFFECT

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = Field(None, ge=0)
    include_stop_str_in_output: bool | None = None  # vLLM's name of no_stop_trim
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)  # vLLM's
    return_speculation: bool | None = None  # statistics in each finished choice
    return_rounds: bool | None = None  # the rounds of each chunk's tokens

    def token_limit(self) -> tuple[str, int | None]:
        return "max_tokens", self.max_tokens

    def min_length(self) -> tuple[str, int | None]:
        return "min_tokens", self.min_tokens

    @property
    def keeps_stop(self) -> bool:
        return bool(self.include_stop_str_in_output or self.no_stop_trim)

    def logprob_options(self) -> LogprobOptions | None:
        """Return what `logprobs` of a choice has."""
        raise NotImplementedError

    def engine_logprobs(self) -> LogprobOptions | None:
        """Return what the engine computes: for `logprobs` and for `prompt_logprobs`."""
        own = self.logprob_options()
        if self.prompt_logprobs is None:
            return own
        return LogprobOptions(max(self.prompt_logprobs, own.num_top if own else 0), 0)

    @property
    def streaming(self) -> StreamOptions:
        return self.stream_options or StreamOptions()

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("kind", "stream_options", "is only accepted with 'stream': true")
        return self

    @model_validator(mode="after")
    def _rounds_need_stream(self) -> Self:
        check_return_rounds(self.return_rounds, self.stream)
        return self


def _prompt_kind(value: object) -> str | None:
    """Return the union branch of a prompt, by its first item."""
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list) or not value:
        return None
    kinds = {str: "<texts>", int: "<ids>", list: "<many ids>"}
    return kinds.get(type(value[0]))


_AtMost = item_count(MAX_PROMPTS)


class CompletionBody(OpenAIBody):
    """A prompt, or a list of them. stream_options and return_rounds need stream.

    At most one field sets a grammar. max_tokens 0 needs echo or prompt_logprobs.
    """

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **_UNSERVED,
        "add_special_tokens": (True,),
        "best_of": (1,),
        "suffix": ("",),
    }

    max_tokens: int | None = Field(None, ge=0)  # 0: the prompt is scored
    echo: bool | None = None  # return the prompt before the output
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    prompt: Annotated[
        Annotated[Prompt, Tag("<text>")]
        | Annotated[list[Prompt], Tag("<texts>"), _AtMost]
        | Annotated[PromptIds, Tag("<ids>")]
        | Annotated[list[PromptIds], Tag("<many ids>"), _AtMost],
        Discriminator(
            _prompt_kind,
            custom_error_type="prompt",
            custom_error_message=(
                "Input should be a string, a list of strings, a list of token ids or a list of "
                "such lists, and not empty"
            ),
        ),
    ]

    def logprob_options(self) -> LogprobOptions | None:
        if self.logprobs is None:
            return None
        return LogprobOptions(self.logprobs, 0 if self.echo else None)

    @property
    def default_limit(self) -> int | None:
        return 16

    @model_validator(mode="after")
    def _no_tokens_need_echo(self) -> Self:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            message = "must be at least 1; 0 needs 'echo': true or 'prompt_logprobs'"
            raise field_error("kind", "max_tokens", message)
        return self

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts as a list."""
        is_many = _prompt_kind(self.prompt) in ("<texts>", "<many ids>")
        return cast("list[str | list[int]]", self.prompt if is_many else [self.prompt])


class ChatBody(OpenAIBody, ToolFields):
    """A chat. stream_options and return_rounds need stream, and top_logprobs needs logprobs.

    At most one field sets a grammar; max_tokens and max_completion_tokens are two names of one
    limit. Tools have distinct names, and tool_choice names one of them. continue_final_message
    needs a last message of the assistant, and excludes add_generation_prompt.
    """

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **_UNSERVED,
        "add_special_tokens": (False,),
        "echo": (False,),
        "functions": ([],),
        "include_reasoning": (True,),
        "separate_reasoning": (True,),
        "stream_reasoning": (True,),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "verbosity": ("medium",),
        "web_search_options": (),
        "chat_template": (),
    }

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    max_completion_tokens: int | None = Field(None, ge=1)
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: Text | None = None
    add_generation_prompt: bool | None = None  # by default true, unless a message is continued
    continue_final_message: bool | None = None  # the output continues the assistant's message

    @model_validator(mode="after")
    def _last_message_can_be_continued(self) -> Self:
        check_continuation(self.messages, self)
        return self

    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    def logprob_options(self) -> LogprobOptions | None:
        return LogprobOptions(self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise field_error("kind", "top_logprobs", "is only accepted with 'logprobs': true")
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise field_error(
                "kind",
                "max_tokens",
                f"is {self.max_tokens} and 'max_completion_tokens' is "
                f"{self.max_completion_tokens}; they are two names of one limit: send one",
            )
        return self
