"""What every request body has in common: what is not served is refused by name, not ignored."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from server.asked_options import AskedOptions
from server.bad_body import field_error, quote

MAX_PROMPTS = 1024  # in one request
_MAX_STOPS = 256
_MAX_STOP_CHARS = 16384  # of all stop strings of a request together
_MAX_ID_CHARS = 128


class Body(BaseModel):
    """A JSON object. Types are exact: "5" is no number and 1 is no boolean.

    UNSERVED names fields of the API that this server does not serve, each with the values that
    ask for nothing; those (and null) are accepted, anything else is refused. IGNORED fields
    have no effect on an answer, so they are accepted whatever they say. ELSEWHERE gives names
    that are looked for here, but are at home in another object.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    IGNORED: ClassVar[frozenset[str]] = frozenset()
    ELSEWHERE: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _keep_what_is_served(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            if name in cls.model_fields:
                kept[name] = value
            elif name in cls.UNSERVED:
                _check_neutral(name, value, cls.UNSERVED[name])
            elif name not in cls.IGNORED:
                raise cls._unknown_field(name)
        return kept

    @classmethod
    def _unknown_field(cls, name: str) -> PydanticCustomError:
        served = list(cls.model_fields)
        nearest = cls.ELSEWHERE.get(name) or get_close_matches(name, served, n=1, cutoff=0.0)[0]
        message = f"is an unknown field; the nearest valid name is '{nearest}'"
        return field_error("unknown_field", quote(name)[1:-1], message)


def _check_neutral(name: str, value: object, neutral: tuple[object, ...]) -> None:
    if value is None or any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral
    ):
        return
    accepted = " or ".join(json.dumps(other) for other in (None, *neutral))
    message = f"is not served here; leave it out (accepted: {accepted}); found {quote(value)}"
    raise field_error("unserved_field", name, message)


def _encodable(text: str) -> str:
    """JSON can carry half of a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must be valid Unicode, without lone surrogates") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Prompt = Annotated[Text, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0)]
PromptIds = Annotated[list[TokenId], Field(min_length=1)]
RequestId = Annotated[Text, Field(min_length=1, max_length=_MAX_ID_CHARS)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


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
    """One turn of a chat. Its content is text, or a list of text parts."""

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "tool_calls": ([],),
        "tool_call_id": (),
        "function_call": (),
        "audio": (),
        "refusal": (),
        "annotations": ([],),
        "reasoning_content": (),
    }
    IGNORED = frozenset({"name"})

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[Text, Tag("<text>")] | Annotated[list[TextPart], Tag("<parts>")],
        Discriminator(
            lambda value: _branch(value, {str: "<text>", list: "<parts>"}),
            custom_error_type="content",
            custom_error_message="Input should be a string or a list of text parts",
        ),
    ]

    def plain(self) -> dict[str, str]:
        """As chat templates want it. They know no developer: it is today's word for system."""
        text = self.content
        if not isinstance(text, str):
            text = "\n".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


Messages = Annotated[list[Message], Field(min_length=1)]


_TEMPLATE_OPTIONS = frozenset(  # of transformers' apply_chat_template; the server sets them itself
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


def _only_for_the_template(kwargs: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(_TEMPLATE_OPTIONS & set(kwargs)):
        raise ValueError(f"must not name {', '.join(taken)}, which the server sets itself")
    return kwargs


TemplateKwargs = Annotated[dict[Text, Any], AfterValidator(_only_for_the_template)]


class SamplingFields(Body):
    """The sampling fields that both APIs call by the same names."""

    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    seed: Seed | None = None
    stop: Annotated[
        Annotated[None, Tag("<none>")]
        | Annotated[Text, Tag("<stop>")]
        | Annotated[list[Text], Tag("<stops>")],
        Discriminator(
            lambda value: _branch(value, {type(None): "<none>", str: "<stop>", list: "<stops>"}),
            custom_error_type="stop",
            custom_error_message="Input should be a string or a list of strings",
        ),
    ] = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    @field_validator("top_k")
    @classmethod
    def _is_off_or_counts(cls, top_k: int | None) -> int | None:
        if top_k is not None and (top_k < -1 or top_k == 0):
            raise ValueError("must be -1 (off) or at least 1")
        return top_k

    @field_validator("stop")
    @classmethod
    def _says_something(cls, stop: str | list[str] | None) -> str | list[str] | None:
        cls.check_stops([stop] if isinstance(stop, str) else stop)
        return stop

    @staticmethod
    def check_stops(stops: list[str] | None) -> list[str] | None:
        """The same list. Raises ValueError for an empty stop, and for too many of them."""
        stops = stops or []
        if not all(stops):
            raise ValueError("must not contain an empty string")
        if len(stops) > _MAX_STOPS or sum(map(len, stops)) > _MAX_STOP_CHARS:
            raise ValueError(
                f"must be at most {_MAX_STOPS} strings of {_MAX_STOP_CHARS} characters in all"
            )
        return stops

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def asked_seed(self) -> int | None:
        return self.seed

    @property
    def num_choices(self) -> int:
        """Answers of one prompt."""
        return 1

    def asked_options(self) -> AskedOptions:
        return AskedOptions()

    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the answer's tokens, and what it says."""
        raise NotImplementedError


def _branch(value: object, tags: Mapping[type, str]) -> str | None:
    return tags.get(type(value))
