"""Defines tools, tool choices, and tool calls of earlier messages."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from server.errors.validation_errors import field_error, quote
from server.protocol.base import Body, Text
from server.structured_output.grammar_spec import GrammarSpec

_MAX_TOOLS = 256

ToolName = Annotated[Text, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]


class FunctionBody(Body):
    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # arguments must match parameters


class ToolBody(Body):
    type: Literal["function"]
    function: FunctionBody

    def for_template(self) -> dict[str, Any]:
        """Return the tool for a chat template."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


def _distinct(tools: list[ToolBody]) -> list[ToolBody]:
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError("must not name a function twice")
    return tools


Tools = Annotated[list[ToolBody], Field(max_length=_MAX_TOOLS), AfterValidator(_distinct)]


class CalledFunction(Body):
    IGNORED = frozenset({"parsed_arguments"})  # sent back by the official client

    name: Text
    arguments: Text  # JSON

    def parsed(self) -> dict[str, Any]:
        """Return the arguments as an object; empty text is no arguments."""
        value: dict[str, Any] = json.loads(self.arguments or "{}")
        return value


def _check_arguments(function: CalledFunction) -> CalledFunction:
    value: object = None
    with suppress(ValueError, RecursionError):
        value = function.parsed()
    if not isinstance(value, dict):
        raise field_error("kind", "arguments", "must be a JSON object, as text")
    return function


class CallBody(Body):
    """A tool call of an assistant message."""

    IGNORED = frozenset({"index"})

    id: Text | None = None
    type: Literal["function"] = "function"
    function: Annotated[CalledFunction, AfterValidator(_check_arguments)]

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
    tools: Sequence[OfferedTool], *, is_required: bool, is_single: bool, name: str | None = None
) -> ToolChoiceMode | None:
    """Return the mode; None without tools. name: the one tool that must be called."""
    if not tools:
        return None
    if name is not None:
        tools = [tool for tool in tools if tool.name == name]
    return ToolChoiceMode(
        tuple(tools), is_required or name is not None, is_single or name is not None
    )


def chosen_name(choice: object) -> str | None:
    """Return the function name in a tool_choice; None if it has none."""
    match choice:
        case {"type": "function", "function": {"name": str(name), **more}, **others}:
            return None if more or others else name
        case _:
            return None


def check_tool_choice(choice: object, tools: Sequence[ToolBody]) -> None:
    """Raise field_error for an invalid choice, and for a tool that is not offered."""
    if choice in (None, "none", "auto"):
        return
    name, names = chosen_name(choice), [tool.function.name for tool in tools]
    if choice != "required" and name is None:
        message = (
            "must be 'none', 'auto', 'required' or a function "
            '({"type": "function", "function": {"name": ...}}); found ' + quote(choice)
        )
        raise field_error("kind", "tool_choice", message)
    if not names or (name is not None and name not in names):
        accepted = ", ".join(names) or "none, because there are no tools"
        found = "a call" if name is None else quote(name)
        raise field_error("kind", "tool_choice", f"requires {found}; offered: {accepted[:200]}")


class ToolFields(Body):
    """Tool fields with the OpenAI API's names."""

    tools: Tools | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        """The tools for the chat template; empty with tool_choice "none"."""
        if self.tool_choice == "none":
            return []
        return [tool.for_template() for tool in self.tools or []]

    def tool_choice_mode(self) -> ToolChoiceMode | None:
        tools = [] if self.tool_choice == "none" else self.tools or []
        return tool_choice_of(
            [
                OfferedTool(
                    name=tool.function.name,
                    field=f"tools.{i}.function.parameters",
                    parameters=tool.function.parameters,
                    is_strict=bool(tool.function.strict),
                )
                for i, tool in enumerate(tools)
            ],
            is_required=self.tool_choice == "required",
            is_single=self.parallel_tool_calls is False,
            name=chosen_name(self.tool_choice),
        )

    @model_validator(mode="after")
    def _tool_choice_is_valid(self) -> Self:
        check_tool_choice(self.tool_choice, self.tools or [])
        return self
