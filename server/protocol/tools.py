"""Defines tools, tool choices, and tool calls of earlier messages."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from server.errors.validation_errors import field_error, quote
from server.protocol.base import Body, JsonObject, Text, item_count
from server.protocol.json_scan import MAX_NESTED_VALUES, bounds_error
from server.structured_output.grammar_spec import GrammarSpec

MAX_TOOLS = 256

ToolName = Annotated[
    Text,
    Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$"),
    WithJsonSchema(
        {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.-]+$"}
    ),
]


def _object(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_FUNCTION = {"const": "function"}
_FUNCTIONS = [
    _object(type=_FUNCTION, function=_object(name={"type": "string"})),
    _object(type=_FUNCTION, name={"type": "string"}),
]
_ALLOWED = {
    "mode": {"enum": ["auto", "required"]},
    "tools": {"type": "array", "minItems": 1, "items": {"anyOf": _FUNCTIONS}},
}
# How the OpenAPI document describes a tool_choice, which `select_tools` validates: that of chat
# completions, then that of the Responses API.
TOOL_CHOICE_SCHEMA: Any = {
    "anyOf": [
        {"enum": ["none", "auto", "required", None]},
        *_FUNCTIONS,
        _object(type={"const": "allowed_tools"}, allowed_tools=_object(**_ALLOWED)),
        _object(type={"const": "allowed_tools"}, **_ALLOWED),
    ]
}


class FunctionBody(Body):
    name: ToolName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None  # arguments must match parameters


def refuse_other_types(data: Any) -> Any:
    """Refuse custom tools and tools that other servers run, before their fields are looked at."""
    kind = data.get("type") if isinstance(data, dict) else None
    if isinstance(kind, str) and kind != "function":
        message = f"must be 'function', the only tools that are served; found {quote(kind)}"
        raise field_error("unserved_field", "type", message)
    return data


class ToolBody(Body):
    type: Literal["function"]
    function: FunctionBody

    _only_functions = model_validator(mode="before")(refuse_other_types)

    def for_template(self) -> dict[str, Any]:
        """Return the tool for a chat template."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


def _distinct(tools: list[ToolBody]) -> list[ToolBody]:
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError("must not name a function twice")
    return tools


Tools = Annotated[list[ToolBody], item_count(MAX_TOOLS), AfterValidator(_distinct)]


class CalledFunction(Body):
    """A call; its arguments are a JSON object as text, or empty."""

    IGNORED = frozenset({"parsed_arguments"})  # sent back by the official client

    name: Text
    arguments: Text  # JSON

    def parsed(self) -> dict[str, Any]:
        """Return the arguments as an object; empty text is no arguments."""
        value: dict[str, Any] = json.loads(self.arguments or "{}")
        return value


def check_arguments(function: CalledFunction) -> CalledFunction:
    problem = bounds_error(function.arguments, max_values=MAX_NESTED_VALUES)
    if problem is not None:
        raise field_error("kind", "arguments", problem)
    value: object = None
    with suppress(ValueError):
        value = function.parsed()
    if not isinstance(value, dict):
        raise field_error("kind", "arguments", "must be a JSON object, as text")
    return function


class CallBody(Body):
    """A tool call of an assistant message."""

    IGNORED = frozenset({"index"})

    id: Text | None = None
    type: Literal["function"] = "function"
    function: Annotated[CalledFunction, AfterValidator(check_arguments)]

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.parsed()}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that may be called, and the schema of its arguments."""

    name: str
    field: str  # path of its parameters in the request
    parameters: Mapping[str, Any] | None
    is_strict: bool

    def arguments(self) -> GrammarSpec:
        """Return the arguments' grammar. Raises ValueError for a strict non-object schema."""
        schema = dict(self.parameters or {})
        if schema.get("type", "object") != "object":
            if self.is_strict:
                raise ValueError(f"must be of type object; found {quote(schema['type'])}")
            schema = {}
        schema = {"type": "object", **schema}
        return GrammarSpec.schema(self.field, schema, is_strict=self.is_strict)


@dataclass(frozen=True, slots=True)
class ToolChoiceMode:
    """Which tools may be called, and the constraints on calls."""

    tools: tuple[OfferedTool, ...]
    is_required: bool  # at least one call
    is_single: bool  # at most one call

    @property
    def needs_grammar(self) -> bool:
        return self.is_required or self.is_single or any(tool.is_strict for tool in self.tools)


def tool_choice_of(
    tools: Sequence[OfferedTool], *, is_required: bool, is_single: bool
) -> ToolChoiceMode | None:
    """Return the mode; None without tools."""
    return ToolChoiceMode(tuple(tools), is_required, is_single) if tools else None


@dataclass(frozen=True, slots=True)
class ToolSelection:
    """A request's tool_choice: the tools that may be called, and whether one must be."""

    names: tuple[str, ...]
    is_required: bool
    is_single: bool  # one function by its name, which is called once

    def __contains__(self, name: str) -> bool:
        return name in self.names


def select_tools(choice: object, offered: Sequence[str]) -> ToolSelection:
    """Return the selection of a tool_choice. Raises field_error for an invalid one.

    Accepts the forms of chat completions and of the Responses API.
    """
    mode, named = _parse_choice(choice)
    is_required = mode == "required"
    if mode == "none":
        return ToolSelection((), is_required=False, is_single=False)
    missing = [name for name in named or () if name not in offered]
    if missing or (is_required and not offered):
        accepted = ", ".join(offered) or "none, because there are no tools"
        found = quote(missing[0]) if missing else "a call"
        raise field_error("kind", "tool_choice", f"requires {found}; offered: {accepted[:200]}")
    names = tuple(offered) if named is None else tuple(name for name in offered if name in named)
    is_single = is_required and named is not None and not is_allowed_tools(choice)
    return ToolSelection(names, is_required, is_single)


def is_allowed_tools(choice: object) -> bool:
    return isinstance(choice, Mapping) and choice.get("type") == "allowed_tools"


def _parse_choice(choice: object) -> tuple[str, tuple[str, ...] | None]:
    """Return the mode, and the names of the tools that may be called; None is all tools."""
    match choice:
        case None | "auto":
            return "auto", None
        case "none" | "required":
            return choice, None
        case {"type": "function", "function": {"name": str(name), **more}, **others}:
            if not more and not others:
                return "required", (name,)
        case {"type": "function", "name": str(name), **others}:
            if not others:
                return "required", (name,)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}:
            return _parse_allowed(choice, mode, tools)
        case {"type": "allowed_tools", "mode": mode, "tools": tools}:
            return _parse_allowed(choice, mode, tools)
    raise _invalid_choice(choice)


def _parse_allowed(
    choice: object, mode: object, tools: object
) -> tuple[str, tuple[str, ...] | None]:
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise _invalid_choice(choice)
    names = []
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case {"type": "function", "name": str(name)}:
                names.append(name)
            case _:
                raise _invalid_choice(choice)
    return str(mode), tuple(names)


def _invalid_choice(choice: object) -> PydanticCustomError:
    message = (
        "must be 'none', 'auto', 'required', allowed_tools or a function "
        '({"type": "function", "function": {"name": ...}}); found ' + quote(choice)
    )
    return field_error("kind", "tool_choice", message)


class ToolFields(Body):
    """Tool fields with the OpenAI API's names."""

    PARAMETERS_FIELD: ClassVar[str] = "function.parameters"  # of a tool

    tools: Tools | None = None
    tool_choice: Any = Field(None, json_schema_extra=TOOL_CHOICE_SCHEMA)
    parallel_tool_calls: bool | None = None

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        """The tools for the chat template: those that may be called."""
        selection = self._selection()
        return [t.for_template() for t in self.tools or [] if t.function.name in selection]

    def tool_choice_mode(self) -> ToolChoiceMode | None:
        selection = self._selection()
        return tool_choice_of(
            [
                OfferedTool(
                    name=tool.function.name,
                    field=f"tools.{i}.{self.PARAMETERS_FIELD}",
                    parameters=tool.function.parameters,
                    is_strict=bool(tool.function.strict),
                )
                for i, tool in enumerate(self.tools or [])
                if tool.function.name in selection
            ],
            is_required=selection.is_required,
            is_single=self.parallel_tool_calls is False or selection.is_single,
        )

    def _selection(self) -> ToolSelection:
        return select_tools(self.tool_choice, [tool.function.name for tool in self.tools or []])

    @model_validator(mode="after")
    def _tool_choice_is_valid(self) -> Self:
        self._selection()
        return self
