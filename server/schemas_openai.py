"""Bodies of the OpenAI routes."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self, cast

from pydantic import Discriminator, Field, Tag, model_validator

from server.bad_body import field_error
from server.schemas import (
    MAX_PROMPTS,
    Body,
    Messages,
    Prompt,
    PromptIds,
    SamplingFields,
    TemplateKwargs,
)

_NO_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)

_UNSERVED: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "add_special_tokens": (),
    "return_token_ids": (False,),
    "prompt_logprobs": (),
}


class StreamOptions(Body):
    IGNORED = frozenset({"include_obfuscation"})

    include_usage: bool = False
    continuous_usage_stats: bool = False  # usage so far in every chunk, vLLM's name
    token_by_token: bool = False  # a chunk for each token, however many a step has committed


class OpenAIBody(SamplingFields):
    """What completions and chat completions share."""

    IGNORED = _NO_EFFECT

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    return_speculation: bool | None = None  # how the draft fared, in each choice at its end

    def token_limit(self) -> tuple[str, int | None]:
        return "max_tokens", self.max_tokens

    @property
    def streaming(self) -> StreamOptions:
        return self.stream_options or StreamOptions()

    @model_validator(mode="after")
    def _options_belong_to_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("kind", "stream_options", "is only accepted with 'stream': true")
        return self


def _prompt_kind(value: object) -> str | None:
    """Strings or token ids, one or many; told by the first item, checked by the branch."""
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list) or not value:
        return None
    kinds = {str: "<texts>", int: "<ids>", list: "<many ids>"}
    return kinds.get(type(value[0]))


_AtMost = Field(max_length=MAX_PROMPTS)


class CompletionBody(OpenAIBody):
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **_UNSERVED,
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
        "logprobs": (),
    }

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

    def prompts(self) -> list[str | list[int]]:
        """One prompt for each choice of the answer."""
        is_many = _prompt_kind(self.prompt) in ("<texts>", "<many ids>")
        return cast("list[str | list[int]]", self.prompt if is_many else [self.prompt])


class ChatBody(OpenAIBody):
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **_UNSERVED,
        "logprobs": (False,),
        "top_logprobs": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "chat_template": (),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
    }

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    chat_template_kwargs: TemplateKwargs | None = None

    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

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
