"""Defines the bodies of Anthropic's routes."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from server.errors.validation_errors import field_error, shorten
from server.protocol.base import Body, JsonObject, Text, item_count
from server.protocol.common import MAX_MESSAGES, MAX_PARTS, Message, RequestFields, Stops, TextPart
from server.protocol.engine_options import ReasoningRequest
from server.protocol.structured_output import grammar_of
from server.protocol.tools import MAX_TOOLS, OfferedTool, ToolChoiceMode, ToolName, tool_choice_of
from server.structured_output.grammar_spec import GrammarSpec

_NO_EFFECT = frozenset({"cache_control", "metadata", "service_tier"})


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<blocks>" if isinstance(value, list) else None


class TextBlock(TextPart):
    IGNORED = frozenset({"cache_control", "citations", "parsed_output"})


def _content(what: str) -> Any:
    return Discriminator(
        _kind,
        custom_error_type="content",
        custom_error_message=f"Input should be a string or a list of {what}",
    )


Content = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[list[TextBlock], Tag("<blocks>"), item_count(MAX_PARTS)],
    _content("text blocks"),
]


class ToolUseBlock(Body):
    """A tool call of the assistant."""

    IGNORED = frozenset({"cache_control", "caller"})
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {"toolset_name": ()}

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: JsonObject

    def call(self) -> dict[str, Any]:
        arguments = json.dumps(self.input)
        return {"id": self.id, "function": {"name": self.name, "arguments": arguments}}


class ThinkingBlock(Body):
    """Reasoning of the assistant."""

    IGNORED = frozenset({"signature"})

    type: Literal["thinking"]
    thinking: Text


class ToolResultBlock(Body):
    """The result of a tool call."""

    IGNORED = frozenset({"cache_control", "is_error"})
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {"toolset_name": ()}

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Content | None = None

    def message(self) -> Message:
        content = _joined(self.content or "")
        return Message(role="tool", tool_call_id=self.tool_use_id, content=content)


def _block_kind(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if isinstance(kind, str) else None


Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")],
    Discriminator(
        _block_kind,
        custom_error_type="block",
        custom_error_message="Input should be a block of type text, tool_use, tool_result or "
        "thinking",
    ),
]


class Turn(Body):
    """One message of the user or the assistant."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[Text, Tag("<text>")]
        | Annotated[list[Block], Tag("<blocks>"), item_count(MAX_PARTS)],
        _content("text blocks"),
    ]

    def messages(self) -> list[Message]:
        """Convert to chat messages; each tool result becomes a message."""
        if isinstance(self.content, str):
            return [Message(role=self.role, content=self.content)]
        results = [b.message() for b in self.content if isinstance(b, ToolResultBlock)]
        text = _joined([block for block in self.content if isinstance(block, TextBlock)])
        calls = [block.call() for block in self.content if isinstance(block, ToolUseBlock)]
        reasoning = "".join(b.thinking for b in self.content if isinstance(b, ThinkingBlock))
        if results and not text:
            return results
        message: dict[str, Any] = {"role": self.role, "content": text}
        if calls:
            message["tool_calls"] = calls
        if reasoning:
            message["reasoning_content"] = reasoning
        return [*results, Message.model_validate(message)]

    @model_validator(mode="after")
    def _blocks_belong_to_the_role(self) -> Self:
        owners = {"tool_use": "assistant", "thinking": "assistant", "tool_result": "user"}
        for number, block in enumerate(self.content if isinstance(self.content, list) else []):
            if owners.get(block.type, self.role) != self.role:
                raise field_error(
                    "kind",
                    f"content.{number}",
                    f"is a {block.type} block, which only the {owners[block.type]} has",
                )
        return self


class AnthropicTool(Body):
    IGNORED = frozenset({"cache_control", "eager_input_streaming"})
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "input_examples": ([],),
    }

    type: Literal["custom"] | None = None
    name: ToolName
    description: Text | None = None
    input_schema: JsonObject
    strict: bool | None = None  # the input must match the schema

    def for_template(self) -> dict[str, Any]:
        """Return the tool for a chat template."""
        function = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function}


class ToolChoice(Body):
    type: Literal["auto", "none", "any", "tool"]
    name: Text | None = None  # the tool that must be called
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> Self:
        if (self.name is not None) != (self.type == "tool"):
            raise field_error("kind", "name", "belongs to 'type': 'tool', which needs one")
        return self


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")

    ALIASES: ClassVar[frozenset[str]] = frozenset({"schema"})


class OutputConfig(Body):
    format: OutputFormat | None = None
    effort: Text | None = None  # of reasoning

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {"task_budget": ()}


class Thinking(Body):
    """Whether the model reasons. The budget and the display have no effect."""

    IGNORED = frozenset({"budget_tokens", "display"})

    type: Literal["enabled", "adaptive", "disabled"]


class CountBody(Body):
    """A prompt whose tokens are counted."""

    IGNORED = _NO_EFFECT
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "container": (),
        "context_management": ({"edits": []},),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }

    model: str
    messages: Annotated[list[Turn], item_count(MAX_MESSAGES, least=1)]
    system: Content | None = None
    tools: Annotated[list[AnthropicTool], item_count(MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the earlier name of output_config.format
    # Never served; refused in the form that clients know.
    thread: JsonObject | None = Field(None, json_schema_extra={"type": "null"})

    def reasoning(self) -> ReasoningRequest | None:
        """Return what the request says about reasoning; None if nothing."""
        thinking = self.thinking.type if self.thinking is not None else None
        effort = self.output_config.effort if self.output_config is not None else None
        if effort is not None:
            return ReasoningRequest("output_config.effort", effort, thinking != "disabled")
        if thinking is not None:
            return ReasoningRequest("thinking", None, thinking != "disabled")
        return None

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        """The tools for the chat template; empty with tool_choice "none"."""
        if self.tool_choice is not None and self.tool_choice.type == "none":
            return []
        return [tool.for_template() for tool in self.tools or []]

    def tool_choice_mode(self) -> ToolChoiceMode | None:
        choice = self.tool_choice or ToolChoice(type="auto")
        return tool_choice_of(
            [
                OfferedTool(
                    name=tool.name,
                    field=f"tools.{i}.input_schema",
                    parameters=tool.input_schema,
                    is_strict=bool(tool.strict),
                )
                for i, tool in enumerate((self.tools or []) if choice.type != "none" else [])
                if choice.name in (None, tool.name)
            ],
            is_required=choice.type in ("any", "tool"),
            is_single=choice.type == "tool" or bool(choice.disable_parallel_tool_use),
        )

    @model_validator(mode="after")
    def _tool_choice_is_valid(self) -> Self:
        choice, names = self.tool_choice, [tool.name for tool in self.tools or []]
        if choice is None or choice.type in ("auto", "none"):
            return self
        if not names or (choice.name is not None and choice.name not in names):
            offered = ", ".join(names)[:200] or "no tools"
            found = shorten(choice.name or "any")
            message = f"requires a call of {found}; offered: {offered}"
            raise field_error("kind", "tool_choice", message)
        return self

    def chat(self) -> list[Message]:
        """Return the prompt as chat messages: the system message, if any, then the turns."""
        turns = [message for turn in self.messages for message in turn.messages()]
        system = _joined(self.system or "")
        return [Message(role="system", content=system), *turns] if system else turns

    @property
    def continue_final_message(self) -> bool:
        """Whether the output continues a final assistant message."""
        return self.messages[-1].role == "assistant"

    @model_validator(mode="after")
    def _final_assistant_message_has_text(self) -> Self:
        if self.continue_final_message and not self.chat()[-1].for_template()["content"].strip():
            last = f"messages.{len(self.messages) - 1}.content"
            raise field_error("kind", last, "must not be blank in a final assistant message")
        return self


class MessagesBody(CountBody, RequestFields):
    """A prompt and its sampling fields, which include those of the other routes."""

    IGNORED = _NO_EFFECT
    UNSERVED = CountBody.UNSERVED

    max_tokens: int = Field(ge=1)
    stop_sequences: Stops | None = None
    stream: bool | None = None

    @field_validator("stop_sequences")
    @classmethod
    def _check_stop_sequences(cls, stops: list[str] | None) -> list[str] | None:
        return RequestFields.check_stops(stops)

    @property
    def stops(self) -> tuple[str, ...]:
        return (*super().stops, *(self.stop_sequences or ()))

    def token_limit(self) -> tuple[str, int | None]:
        return "max_tokens", self.max_tokens

    def grammar_spec(self, prefix: str = "") -> GrammarSpec | None:
        if self.output_config is not None and self.output_config.format is not None:
            return grammar_of(
                "json_schema", "output_config.format.schema", self.output_config.format.schema_
            )
        if self.output_format is not None:
            return grammar_of("json_schema", "output_format.schema", self.output_format.schema_)
        return None

    @model_validator(mode="after")
    def _format_is_a_grammar(self) -> Self:
        try:
            self.grammar_spec()
        except ValueError as error:
            raise field_error("grammar", "output_config.format.schema", str(error)) from error
        return self


def _joined(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
