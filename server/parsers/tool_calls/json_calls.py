"""Parses calls in JSON. The parsers return None unless all of the text is valid calls."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.parsers.message_parts import ToolCall

_OTHER_KEYS = frozenset({"id", "type"})  # accepted and ignored
_PYTHON_TAG = "<|python_tag|>"
_ARGS = "[ARGS]"
_QUOTES = re.compile(r'(?<!\\)(?:\\\\)*"')


def parse_hermes(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """Parse {"name": ..., "arguments": {...}}."""
    return _all([call_of(parse_json(text), names)])


def parse_llama(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """Parse {"name": ..., "parameters": {...}}; ... after an optional tag."""
    text = text.strip().removeprefix(_PYTHON_TAG).strip()
    calls = []
    while text:
        try:
            value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return None
        calls.append(call_of(value, names))
        text = text[end:].lstrip()
        if text and not text.startswith(";"):
            return None
        text = text[1:].lstrip()
    return _all(calls)


def parse_mistral(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """Parse [{"name": ..., "arguments": {...}}, ...], or name[ARGS]{...}."""
    text = text.strip()
    if text.startswith("["):
        values = parse_json(text)
        return _all([call_of(v, names) for v in values]) if isinstance(values, list) else None
    name, tag, arguments = text.partition(_ARGS)
    if not tag:
        name, brace, arguments = text.partition("{")
        arguments = brace + arguments
    call = {"name": name.strip(), "arguments": parse_json(arguments)}
    return _all([call_of(call, names)])


def is_in_string(text: str) -> bool:
    """Whether the text ends inside a JSON string, after an odd number of quotes."""
    _, brace, rest = text.partition("{")
    return bool(brace) and len(_QUOTES.findall(rest)) % 2 == 1


def call_of(value: object, names: frozenset[str]) -> ToolCall | None:
    """Return the call that a JSON value describes; None if it is no call."""
    if not isinstance(value, Mapping):
        return None
    rest = dict(value)
    name = rest.pop("name", None)
    key = next((key for key in ("arguments", "parameters") if key in rest), None)
    arguments = rest.pop(key) if key is not None else {}
    if not isinstance(name, str) or name not in names or not set(rest) <= _OTHER_KEYS:
        return None
    return make_call(name, arguments)


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


def parse_json(text: str) -> Any:
    """Return the value; None for invalid JSON and for null, neither of which is a call."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _all(calls: Sequence[ToolCall | None]) -> list[ToolCall] | None:
    valid = [call for call in calls if call is not None]
    return valid if valid and len(valid) == len(calls) else None
