"""Bodies of Anthropic's routes."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from server.bad_body import field_error
from server.schemas import Message, SamplingFields, TextPart
from server.schemas_body import Body, Text

_NO_EFFECT = frozenset({"metadata", "service_tier"})


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<blocks>" if isinstance(value, list) else None


class TextBlock(TextPart):
    IGNORED = frozenset({"cache_control", "citations"})


def _content(what: str) -> Any:
    return Discriminator(
        _kind,
        custom_error_type="content",
        custom_error_message=f"Input should be a string or a list of {what}",
    )


Content = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[TextBlock], Tag("<blocks>")],
    _content("text blocks"),
]


class Turn(Body):
    """What one side said."""

    role: Literal["user", "assistant"]
    content: Content

    def messages(self) -> list[Message]:
        return [Message(role=self.role, content=_joined(self.content))]


class CountBody(Body):
    """What the tokens of a prompt are counted from."""

    IGNORED = _NO_EFFECT
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "tools": ([],),
        "tool_choice": ({"type": "auto"}, {"type": "none"}),
        "thinking": ({"type": "disabled"},),
        "container": (),
        "context_management": (),
        "mcp_servers": ([],),
        "output_config": (),
        "output_format": (),
    }

    model: str
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: Content | None = None

    def chat(self) -> list[Message]:
        """The prompt as a chat: what the system says first, then the turns."""
        turns = [message for turn in self.messages for message in turn.messages()]
        if self.system is None:
            return turns
        return [Message(role="system", content=_joined(self.system)), *turns]

    @property
    def goes_on(self) -> bool:
        """Whether the answer goes on with what the assistant is made to have begun."""
        return self.messages[-1].role == "assistant"

    @model_validator(mode="after")
    def _begun_with_text(self) -> Self:
        if self.goes_on and not self.chat()[-1].plain()["content"].strip():
            last = f"messages.{len(self.messages) - 1}.content"
            raise field_error("kind", last, "must say something where the assistant goes on")
        return self


class MessagesBody(CountBody, SamplingFields):
    """A prompt and how to answer it. Sampling fields of the other routes are understood too."""

    IGNORED = _NO_EFFECT
    UNSERVED = CountBody.UNSERVED

    max_tokens: int = Field(ge=1)
    stop_sequences: list[Text] | None = None
    stream: bool | None = None

    @field_validator("stop_sequences")
    @classmethod
    def _each_says_something(cls, stops: list[str] | None) -> list[str] | None:
        return SamplingFields.check_stops(stops)

    @property
    def stops(self) -> tuple[str, ...]:
        return (*super().stops, *(self.stop_sequences or ()))

    def token_limit(self) -> tuple[str, int | None]:
        return "max_tokens", self.max_tokens


def _joined(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
