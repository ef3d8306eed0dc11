"""Parses calls in JSON. The parsers return None unless all of the text is valid calls."""

import json
import re

from server.parsers.message_parts import ToolCall
from server.parsers.tool_calls.json_text import members

_OTHER_KEYS = frozenset({"id", "type"})  # accepted and ignored
_PYTHON_TAG = "<|python_tag|>"
_ARGS = "[ARGS]"
_QUOTES = re.compile(r'(?<!\\)(?:\\\\)*"')


def parse_hermes(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """Parse {"name": ..., "arguments": {...}}."""
    return _calls(text, names, separator=None)


def parse_llama(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """Parse {"name": ..., "parameters": {...}}; ... after an optional tag."""
    text = text.strip().removeprefix(_PYTHON_TAG).strip()
    return _calls(text.removesuffix(";"), names, separator=";")


def parse_mistral(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """Parse [{"name": ..., "arguments": {...}}, ...], or name[ARGS]{...}."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return _calls(text[1:-1], names, separator=",")
    name, tag, arguments = text.partition(_ARGS)
    if not tag:
        name, brace, arguments = text.partition("{")
        arguments = brace + arguments
    name, arguments = name.strip(), arguments.strip()
    try:
        is_call = name in names and members(arguments)[1] == len(arguments)
    except ValueError:
        return None
    return [ToolCall(name, arguments)] if is_call else None


def is_in_string(text: str) -> bool:
    """Whether the text ends inside a JSON string, after an odd number of quotes."""
    _, brace, rest = text.partition("{")
    return bool(brace) and len(_QUOTES.findall(rest)) % 2 == 1


def make_call(name: str, arguments: object) -> ToolCall | None:
    """Return a call; None for arguments that are no object, or cannot be JSON in UTF-8."""
    if not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return ToolCall(name, text)


def _calls(text: str, names: frozenset[str], *, separator: str | None) -> list[ToolCall] | None:
    """Return the calls between separators; None unless all of the text is valid calls."""
    calls, at = [], 0
    while True:
        try:
            found, end = members(text, at)
        except ValueError:
            return None
        call = _call_of(found, names)
        if call is None:
            return None
        calls.append(call)
        rest = text[end:].lstrip()
        if not rest:
            return calls
        if separator is None or not rest.startswith(separator):
            return None
        at = len(text) - len(rest) + 1


def _call_of(found: dict[str, str], names: frozenset[str]) -> ToolCall | None:
    """Return the call of an object's members; None if they are no call."""
    name = found.pop("name", "null")
    key = next((key for key in ("arguments", "parameters") if key in found), None)
    arguments = found.pop(key) if key is not None else "{}"
    is_call = name.startswith('"') and arguments.startswith("{") and found.keys() <= _OTHER_KEYS
    if not is_call or (named := json.loads(name)) not in names:
        return None
    return ToolCall(named, arguments)
