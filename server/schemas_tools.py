"""Tools that a chat offers, and calls of them in earlier turns."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from server.bad_body import field_error
from server.schemas_body import Body, Text

_MOST_TOOLS = 256

ToolName = Annotated[Text, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]


class FunctionBody(Body):
    # Arguments that follow the schema without fail need grammars.
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {"strict": (False,)}

    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(Body):
    type: Literal["function"]
    function: FunctionBody


def _distinct(tools: list[ToolBody]) -> list[ToolBody]:
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError("must not name a function twice")
    return tools


Tools = Annotated[list[ToolBody], Field(max_length=_MOST_TOOLS), AfterValidator(_distinct)]


class CalledFunction(Body):
    name: Text
    arguments: Text  # JSON

    def parsed(self) -> dict[str, Any]:
        """What templates want. An empty text is no arguments."""
        value: dict[str, Any] = json.loads(self.arguments or "{}")
        return value


def _has_arguments(function: CalledFunction) -> CalledFunction:
    value: object = None
    with suppress(ValueError, RecursionError):
        value = function.parsed()
    if not isinstance(value, dict):
        raise field_error("kind", "arguments", "must be a JSON object, as text")
    return function


class CallBody(Body):
    """A call that the assistant made, as it was told."""

    IGNORED = frozenset({"index"})

    id: Text | None = None
    type: Literal["function"] = "function"
    function: Annotated[CalledFunction, AfterValidator(_has_arguments)]

    def plain(self) -> dict[str, Any]:
        called = {"name": self.function.name, "arguments": self.function.parsed()}
        return {"id": self.id, "type": "function", "function": called}


def check_tool_choice(choice: object) -> None:
    """Raises for a choice that only grammars could keep."""
    if choice not in (None, "none", "auto"):
        raise field_error(
            "unserved_field",
            "tool_choice",
            "is not served here but as 'none' or 'auto': to promise a call needs grammars; "
            f"found {json.dumps(choice)[:60]}",
        )
