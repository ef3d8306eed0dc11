"""Calls of tools in an answer's text, in the formats that models were trained to write."""

from collections.abc import Mapping
from typing import Literal

from server.parsers.message_parts import Parser
from server.parsers.tool_calls.blanks import WithoutBlanks
from server.parsers.tool_calls.python_calls import read_python
from server.parsers.tool_calls.reading import is_in_string, read_hermes, read_llama, read_mistral
from server.parsers.tool_calls.tagged import TaggedCalls
from server.parsers.tool_calls.whole import WholeAnswer

ToolFormat = Literal["hermes", "llama3_json", "mistral", "pythonic"]

# Text that a template of a format has, and that no other's has; looked for in this order.
_TELLTALES: Mapping[str, ToolFormat] = {
    "[TOOL_CALLS]": "mistral",
    "<tool_call>": "hermes",
    "<|python_tag|>": "llama3_json",
}

# Some tokenizers have these as special tokens, which are left out of text otherwise.
MARKS: Mapping[ToolFormat, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "pythonic": (),
}


def format_of_template(template: str) -> ToolFormat | None:
    """The format that a chat template shows its model, if it is one of ours."""
    return next((form for text, form in _TELLTALES.items() if text in template), None)


def tool_parser(form: ToolFormat, names: frozenset[str]) -> Parser:
    """Finds calls of the named tools in one answer. What is no valid call stays text."""
    match form:
        case "hermes":
            inner: Parser = TaggedCalls(
                begin="<tool_call>",
                end="</tool_call>",
                read=lambda text: read_hermes(text, names),
                is_quoted=is_in_string,
            )
        case "mistral":
            inner = TaggedCalls(
                begin="[TOOL_CALLS]",
                end=None,
                read=lambda text: read_mistral(text, names),
                is_quoted=is_in_string,
            )
        case "llama3_json":
            inner = WholeAnswer(
                begins=("<|python_tag|>", "{"), read=lambda text: read_llama(text, names)
            )
        case "pythonic":
            inner = WholeAnswer(begins=("[",), read=lambda text: read_python(text, names))
    return WithoutBlanks(inner)
