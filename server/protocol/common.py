"""Defines prompts, chat messages and sampling fields that several APIs share."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from server.errors.validation_errors import field_error
from server.protocol.base import Body, Text, item_count
from server.protocol.engine_options import EngineOptions
from server.protocol.json_scan import MAX_VALUES
from server.protocol.tools import CallBody
from server.structured_output.grammar_spec import GrammarSpec
from server.text.stop_regex import StopRegex

MAX_PROMPTS = 1024  # in one request
_MAX_STOPS = 256
_MAX_STOP_IDS = 4096
MAX_MESSAGES = 16384
MAX_PARTS = 16384  # of one message
_MAX_CALLS = 256  # of one message
_MAX_TEMPLATE_KWARGS = 256
_MAX_STOP_CHARS = 16384  # of all stop strings of a request together
_MAX_ID_CHARS = 128

# Fields of SGLang's routes that are not served, with the values that change nothing.
UNSERVED_EXTRAS: Mapping[str, tuple[object, ...]] = {
    "custom_logit_processor": (),
    "custom_params": ({},),
    "lora_path": ("",),
    "return_cached_tokens_details": (False,),
    "return_flat_raw_output_top_logprobs": (False,),
    "return_flat_raw_top_logprobs": (False,),
    "return_flat_raw_top_logprobs_b64": (False, True),
    "return_hidden_states": (False,),
    "return_input_ids_in_sglext": (False,),
    "return_meta_info": (False,),
    "return_output_ids_in_sglext": (False,),
    "return_prompt_token_ids": (False,),
    "return_routed_experts": (False,),
    "return_sampling_mask": (False,),
    "return_spec_tokens_details": (False,),
    "routed_experts_start_len": (0,),
    "session_params": ({},),
    "use_audio_in_video": (False,),
}


Prompt = Annotated[Text, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0)]
TokenIds = Annotated[list[TokenId], item_count(MAX_VALUES)]
PromptIds = Annotated[list[TokenId], item_count(MAX_VALUES, least=1)]
RequestId = Annotated[Text, Field(min_length=1, max_length=_MAX_ID_CHARS)]
# The OpenAPI document has bounds as floats; this one is exact in decimal digits, too.
_INT64_BOUND = 2**63 - 1024
_Int64 = Annotated[
    int,
    Field(ge=-(2**63), lt=2**63),
    WithJsonSchema({"type": "integer", "minimum": -_INT64_BOUND, "maximum": _INT64_BOUND}),
]
Priority = _Int64
CacheSalt = Annotated[Text, Field(min_length=1, max_length=_MAX_ID_CHARS)]
Seed = _Int64


class TextPart(Body):
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "image_url": (),
        "video_url": (),
        "input_audio": (),
        "file": (),
        "refusal": (),
    }

    type: Literal["text"]
    text: Text


class Message(Body):
    """One chat message. Its content is text, or a list of text parts.

    Only an assistant message that calls tools may have no content. Only the assistant's have
    tool_calls and reasoning_content, and only a tool's has tool_call_id.
    """

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "function_call": (),
        "audio": (),
        "refusal": (),
        "annotations": ([],),
    }
    IGNORED = frozenset({"name", "parsed"})  # parsed: sent back by the official client

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Annotated[None, Tag("<none>")]
        | Annotated[Text, Tag("<text>")]
        | Annotated[list[TextPart], Tag("<parts>"), item_count(MAX_PARTS)],
        Discriminator(
            lambda value: _branch(value, {type(None): "<none>", str: "<text>", list: "<parts>"}),
            custom_error_type="content",
            custom_error_message="Input should be a string or a list of text parts",
        ),
    ] = None
    tool_calls: Annotated[list[CallBody], item_count(_MAX_CALLS)] | None = None  # of the assistant
    tool_call_id: Text | None = None  # the call whose result this is
    reasoning_content: Text | None = None  # of the assistant

    def for_template(self) -> dict[str, Any]:
        """Return the message for a chat template; role developer becomes system."""
        text = self.content or ""
        if not isinstance(text, str):
            text = "\n".join(part.text for part in text)
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
        }
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        for name in ("tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        return message

    @model_validator(mode="after")
    def _fields_belong_to_the_role(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise field_error("kind", "content", "is missing")
        for name, role in (
            ("tool_calls", "assistant"),
            ("reasoning_content", "assistant"),
            ("tool_call_id", "tool"),
        ):
            if getattr(self, name) and self.role != role:
                raise field_error("kind", name, f"is only accepted in a message of role '{role}'")
        return self


Messages = Annotated[list[Message], item_count(MAX_MESSAGES, least=1)]


_TEMPLATE_OPTIONS = frozenset(  # of transformers' apply_chat_template, which the server sets
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


def _without_reserved_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(_TEMPLATE_OPTIONS & set(kwargs)):
        raise ValueError(f"must not contain {', '.join(taken)}, which the server sets")
    return kwargs


TemplateKwargs = Annotated[
    dict[Text, Any],
    Field(max_length=_MAX_TEMPLATE_KWARGS),
    AfterValidator(_without_reserved_options),
]


StopText = Annotated[Text, WithJsonSchema({"type": "string", "minLength": 1})]
Stops = Annotated[list[StopText], item_count(_MAX_STOPS)]
OneOrMoreStops = Annotated[
    Annotated[None, Tag("<none>")]
    | Annotated[StopText, Tag("<stop>")]
    | Annotated[Stops, Tag("<stops>")],
    Discriminator(
        lambda value: _branch(value, {type(None): "<none>", str: "<stop>", list: "<stops>"}),
        custom_error_type="stop",
        custom_error_message="Input should be a string or a list of strings",
    ),
]


class SamplingFields(Body):
    """Sampling fields with the same name in every API."""

    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, json_schema_extra={"minimum": -1})
    min_p: float | None = Field(None, ge=0, le=1)
    seed: Seed | None = None
    stop: OneOrMoreStops = None
    stop_token_ids: Annotated[list[TokenId], item_count(_MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    # Objects of schemas allow properties that they do not name; None: as the server is set.
    additional_properties: bool | None = None

    @field_validator("top_k")
    @classmethod
    def _check_top_k(cls, top_k: int | None) -> int | None:
        if top_k is not None and top_k < -1:
            raise ValueError("must be -1 or 0 (off), or at least 1")
        return top_k or (None if top_k is None else -1)

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        cls.check_stops(as_list(stop))
        return stop

    @staticmethod
    def check_stops(stops: list[str] | None) -> list[str]:
        """Return the list. Raises ValueError for an empty stop, and for too many characters."""
        stops = stops or []
        if not all(stops):
            raise ValueError("must not contain an empty string")
        if sum(map(len, stops)) > _MAX_STOP_CHARS:
            raise ValueError(f"must have at most {_MAX_STOP_CHARS} characters in all")
        return stops

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(as_list(self.stop))

    @property
    def stop_regexes(self) -> tuple[StopRegex, ...]:
        return ()

    @property
    def engine_priority(self) -> int:
        """Priority among requests, for the scheduler's policy `priority`."""
        return 0

    @property
    def keeps_stop(self) -> bool:
        """Whether the text ends with the stop that ended it."""
        return False

    def effective_seed(self) -> int | None:
        """Return the seed; None for a random one, which -1 requests."""
        return None if self.seed == -1 else self.seed

    @property
    def num_choices(self) -> int:
        """Number of choices of one prompt."""
        return 1

    def engine_options(self) -> EngineOptions:
        return EngineOptions()

    def salt(self) -> str:
        """Return what separates the request from others in the prefix cache; empty: nothing."""
        return ""

    def grammar_spec(self, prefix: str = "") -> GrammarSpec | None:
        """Return the grammar of the output. prefix: path of the object with the grammar fields."""
        return None

    @property
    def default_limit(self) -> int | None:
        """Output tokens of a request without a limit, as in the API's own servers.

        None is what fits the context.
        """
        return None

    def token_limit(self) -> tuple[str, int | None]:
        """Return the name and value of the field that limits the output's tokens."""
        raise NotImplementedError


class RequestFields(SamplingFields):
    """Fields for the scheduler, of the APIs whose sampling fields are the body's own."""

    priority: Priority | None = None
    cache_salt: CacheSalt | None = None  # shares computed prefixes with the same salt alone

    @property
    def engine_priority(self) -> int:
        return self.priority or 0

    def salt(self) -> str:
        return self.cache_salt or ""


class Continuation(Protocol):
    """How a chat's prompt ends."""

    @property
    def add_generation_prompt(self) -> bool | None: ...

    @property
    def continue_final_message(self) -> bool | None: ...


def check_continuation(messages: Sequence[Message] | None, fields: Continuation) -> None:
    """Raise field_error where the output could not continue the last message."""
    name = "continue_final_message"
    if not fields.continue_final_message:
        return
    if fields.add_generation_prompt:
        raise field_error("kind", name, "and 'add_generation_prompt' exclude each other; send one")
    if not messages or messages[-1].role != "assistant":
        raise field_error("kind", name, "needs a last message of role 'assistant'")
    if not messages[-1].for_template()["content"].strip():
        raise field_error("kind", name, "needs text in the last message, which is blank")


def as_list(value: str | list[str] | None) -> list[str]:
    """Return the values of a field with none, one or a list of them."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _branch(value: object, tags: Mapping[type, str]) -> str | None:
    return tags.get(type(value))
