"""Parses tool calls in the formats of different models."""

from collections.abc import Mapping
from typing import Literal

from server.parsers.message_parts import Parser
from server.parsers.tool_calls.blanks import WithoutBlanks
from server.parsers.tool_calls.json_calls import (
    is_in_string,
    parse_hermes,
    parse_llama,
    parse_mistral,
)
from server.parsers.tool_calls.python_calls import parse_python
from server.parsers.tool_calls.tagged import TaggedCalls
from server.parsers.tool_calls.whole_output import WholeOutputCalls

ToolFormat = Literal["hermes", "llama3_json", "mistral", "pythonic"]

# Text that only chat templates of one format contain; searched in this order.
_TEMPLATE_TAGS: Mapping[str, ToolFormat] = {
    "[TOOL_CALLS]": "mistral",
    "<tool_call>": "hermes",
    "<|python_tag|>": "llama3_json",
}

# Special tokens in some tokenizers; the decoder must keep them.
TAGS: Mapping[ToolFormat, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "pythonic": (),
}


def format_of_template(template: str) -> ToolFormat | None:
    """Return the tool-call format that a chat template contains; None if it has none of these."""
    return next((form for text, form in _TEMPLATE_TAGS.items() if text in template), None)


def tool_parser(form: ToolFormat, names: frozenset[str]) -> Parser:
    """Return a parser of calls of the named tools. An invalid call stays text."""
    match form:
        case "hermes":
            inner: Parser = TaggedCalls(
                begin="<tool_call>",
                end="</tool_call>",
                parse=lambda text: parse_hermes(text, names),
                is_quoted=is_in_string,
            )
        case "mistral":
            inner = TaggedCalls(
                begin="[TOOL_CALLS]",
                end=None,
                parse=lambda text: parse_mistral(text, names),
                is_quoted=is_in_string,
            )
        case "llama3_json":
            inner = WholeOutputCalls(
                begins=("<|python_tag|>", "{"), parse=lambda text: parse_llama(text, names)
            )
        case "pythonic":
            inner = WholeOutputCalls(begins=("[",), parse=lambda text: parse_python(text, names))
    return WithoutBlanks(inner)
