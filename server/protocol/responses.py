"""Defines the body and the input items of the Responses API."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from engine import MAX_TOP_LOGPROBS
from server.errors.validation_errors import field_error
from server.protocol.base import Body, JsonObject, Text, item_count
from server.protocol.common import (
    MAX_MESSAGES,
    MAX_PARTS,
    Message,
    Prompt,
    RequestFields,
    TemplateKwargs,
)
from server.protocol.engine_options import (
    EngineOptions,
    LogprobOptions,
    ReasoningRequest,
    effort_of,
)
from server.protocol.structured_output import grammar_of
from server.protocol.tools import (
    MAX_TOOLS,
    TOOL_CHOICE_SCHEMA,
    CalledFunction,
    FunctionBody,
    ToolBody,
    ToolFields,
    ToolName,
    check_arguments,
    refuse_other_types,
    select_tools,
)
from server.structured_output.grammar_spec import GrammarSpec

_MAX_INCLUDES = 64
LOGPROBS = "message.output_text.logprobs"  # of `include`


class ContentPart(Body):
    """Text of a message. `parsed` is what the official client adds to what it was sent."""

    IGNORED = frozenset({"annotations", "logprobs", "parsed", "prompt_cache_breakpoint"})

    type: Literal["input_text", "output_text", "text"]
    text: Text


Parts = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[list[ContentPart], Tag("<parts>"), item_count(MAX_PARTS)],
    Discriminator(
        lambda value: {str: "<text>", list: "<parts>"}.get(type(value)),
        custom_error_type="content",
        custom_error_message="Input should be a string or a list of text parts",
    ),
]


class MessageItem(Body):
    """A message of any role; one of the assistant may be an item of an earlier output."""

    IGNORED = frozenset({"id", "status", "phase"})

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Parts


class FunctionCallItem(Body):
    """A call of the assistant."""

    IGNORED = frozenset({"id", "status", "caller", "namespace", "async", "parsed_arguments"})

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text  # JSON

    @model_validator(mode="after")
    def _arguments_are_an_object(self) -> Self:
        check_arguments(CalledFunction(name=self.name, arguments=self.arguments))
        return self


class FunctionOutputItem(Body):
    """The result of a call."""

    IGNORED = frozenset({"id", "status", "caller"})

    type: Literal["function_call_output"]
    call_id: Text
    output: Parts


class ReasoningText(Body):
    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(Body):
    """Reasoning of the assistant."""

    IGNORED = frozenset({"id", "status", "encrypted_content"})

    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningText], item_count(MAX_PARTS)] | None = None
    content: Annotated[list[ReasoningText], item_count(MAX_PARTS)] | None = None


class ReferenceItem(Body):
    """An item of an earlier response, by its id."""

    type: Literal["item_reference"]
    id: Text


def _item_kind(value: object) -> str | None:
    if isinstance(value, Mapping):
        kind = value.get("type", "message")
    else:
        kind = getattr(value, "type", None)
    return f"<{kind or 'message'}>" if kind is None or isinstance(kind, str) else None


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ReferenceItem, Tag("<item_reference>")],
    Discriminator(
        _item_kind,
        custom_error_type="item",
        custom_error_message="Input should be an item of type message, function_call, "
        "function_call_output, reasoning or item_reference",
    ),
]
ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


class ResponsesTool(Body):
    """A function; in this API its fields are the tool's own."""

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "output_schema": (),
    }

    type: Literal["function"]
    name: ToolName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    _only_functions = model_validator(mode="before")(refuse_other_types)

    def nested(self) -> ToolBody:
        """Return the tool in the form of chat completions."""
        fields = {name: getattr(self, name) for name in FunctionBody.model_fields}
        return ToolBody(type="function", function=FunctionBody.model_construct(**fields))


class TextFormat(Body):
    """`text.format`. The name and the description of a schema have no effect."""

    IGNORED = frozenset({"name", "description", "strict"})
    ALIASES = frozenset({"schema"})

    type: Literal["text", "json_object", "json_schema"]
    schema_: JsonObject | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _schema_matches_type(self) -> Self:
        if (self.schema_ is not None) != (self.type == "json_schema"):
            message = "is required with 'type': 'json_schema', and only accepted there"
            raise field_error("kind", "schema", message)
        return self

    def grammar(self) -> GrammarSpec | None:
        field = "text.format"
        if self.type == "text":
            return None
        if self.type == "json_object":
            return grammar_of("json_object", field, True)
        return grammar_of("json_schema", f"{field}.schema", self.schema_)


class TextConfig(Body):
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {"verbosity": ("medium",)}

    format: TextFormat | None = None


class ReasoningConfig(Body):
    IGNORED = frozenset({"summary", "generate_summary", "context"})

    effort: Text | None = None


class ResponsesBody(RequestFields):
    """A request of POST /v1/responses."""

    IGNORED = frozenset(
        {
            "max_tool_calls",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "spaces_between_special_tokens",
            "stream_options",
            "user",
        }
    )
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "enable_response_messages": (False,),
        "frequency_penalty": (0,),
        "include_reasoning": (True,),
        "include_stop_str_in_output": (False,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "context_management": ([],),
        "conversation": (),
        "moderation": (),
        "n": (1,),
        "prompt": (),
        "truncation": ("disabled", "auto"),
    }

    model: str | None = None
    input: Annotated[
        Annotated[Prompt, Tag("<text>")]
        | Annotated[list[Item], Tag("<items>"), item_count(MAX_MESSAGES, least=1)],
        Discriminator(
            lambda value: {str: "<text>", list: "<items>"}.get(type(value)),
            custom_error_type="input",
            custom_error_message="Input should be a string or a list of items",
        ),
    ]
    instructions: Text | None = None
    previous_response_id: Text | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    metadata: JsonObject | None = None
    include: Annotated[list[Text], item_count(_MAX_INCLUDES)] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: Annotated[list[ResponsesTool], item_count(MAX_TOOLS)] | None = None
    tool_choice: Any = Field(None, json_schema_extra=TOOL_CHOICE_SCHEMA)
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    num_draft_tokens: int | None = Field(None, ge=0)  # the most that a round verifies; 0: no draft

    def engine_options(self) -> EngineOptions:
        return EngineOptions(num_draft_tokens=self.num_draft_tokens)

    def token_limit(self) -> tuple[str, int | None]:
        return "max_output_tokens", self.max_output_tokens

    def grammar_spec(self, prefix: str = "") -> GrammarSpec | None:
        if self.text is None or self.text.format is None:
            return None
        return self.text.format.grammar()

    def logprob_options(self) -> LogprobOptions | None:
        if self.top_logprobs is None and LOGPROBS not in (self.include or []):
            return None
        return LogprobOptions(self.top_logprobs or 0)

    def reasoning_request(self) -> ReasoningRequest | None:
        effort = self.reasoning.effort if self.reasoning is not None else None
        return effort_of("reasoning.effort", effort)

    def items(self) -> list[Item]:
        """Return the input as items; a string is a message of the user."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input

    def function_tools(self) -> ToolFields:
        """Return the tool fields in the form of chat completions. Raises field_error."""
        return _FlatToolFields(
            tools=[tool.nested() for tool in self.tools or []],
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
        )

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        names = [tool.name for tool in self.tools or []]
        if len(set(names)) < len(names):
            raise field_error("kind", "tools", "must not name a function twice")
        return self

    @model_validator(mode="after")
    def _tool_choice_is_valid(self) -> Self:
        select_tools(self.tool_choice, [tool.name for tool in self.tools or []])
        return self

    @model_validator(mode="after")
    def _format_is_a_grammar(self) -> Self:
        try:
            self.grammar_spec()
        except ValueError as error:
            raise field_error("grammar", "text.format.schema", str(error)) from error
        return self


class _FlatToolFields(ToolFields):
    PARAMETERS_FIELD: ClassVar[str] = "parameters"


def chat_of(items: Iterable[Item], instructions: str | None) -> list[Message]:
    """Return items as chat messages: one for each turn of the assistant.

    Instructions come first; system messages that follow them are joined to them, because many
    chat templates accept one at the start alone.
    """
    turns: list[dict[str, Any]] = []
    if instructions:
        turns.append({"role": "system", "content": instructions})
    for item in items:
        _add(turns, item)
    return [Message.model_validate({"content": "", **turn}) for turn in turns]


def _add(turns: list[dict[str, Any]], item: Item) -> None:
    match item:
        case MessageItem(role="system" | "developer"):
            text = _joined(item.content)
            if turns and all(turn["role"] == "system" for turn in turns):
                turns[-1]["content"] += f"\n\n{text}"
            else:
                turns.append({"role": "system", "content": text})
        case MessageItem(role="user"):
            turns.append({"role": "user", "content": _joined(item.content)})
        case MessageItem():
            _assistant(turns, "content")["content"] = _joined(item.content)
        case ReasoningItem():
            texts = [part.text for part in item.content or item.summary or []]
            if texts:
                _assistant(turns, "reasoning_content")["reasoning_content"] = "\n".join(texts)
        case FunctionCallItem():
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "function": function}
            _assistant(turns, None).setdefault("tool_calls", []).append(call)
        case FunctionOutputItem():
            content = _joined(item.output)
            turns.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        case ReferenceItem():
            raise AssertionError("references are resolved before")


def _assistant(turns: list[dict[str, Any]], field: str | None) -> dict[str, Any]:
    """Return the assistant's turn for a new part: the last one, unless it is past that part."""
    order = ("reasoning_content", "content", "tool_calls")
    later = order[order.index(field) :] if field is not None else ()
    if not turns or turns[-1]["role"] != "assistant" or any(n in turns[-1] for n in later):
        turns.append({"role": "assistant"})
    return turns[-1]


def _joined(content: str | Sequence[ContentPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
