"""Turns pydantic's validation errors into one message with field, found and accepted."""

import json
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from pydantic_core import PydanticCustomError

_MAX_ERRORS = 3
_MAX_QUOTE_CHARS = 60  # of the offending value

# pydantic's error type -> what is accepted.
_ACCEPTED: Mapping[str, str] = {
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be an integer",
    "is_instance_of": "must be an object",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "too_long": "must have at most {max_length} items",
    "too_short": "must not be empty",
}
_UNITS = {"string_too_long": "characters", "too_long": "items"}  # a length is found, not a value


class InvalidBody(Exception):
    """A body is refused: message, dotted path of the field (or None), code."""

    def __init__(self, message: str, param: str | None, code: str) -> None:
        super().__init__(message, param, code)
        self.message, self.param, self.code = message, param, code


def field_error(kind: str, field: str, message: str) -> PydanticCustomError:
    """Return an error about a field of the validated object, for a validator to raise."""
    return PydanticCustomError(kind, "{message}", {"field": field, "message": message})


def describe(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None, str]:
    """Return (message, param, code) for the validation errors of one body.

    The message names each field at fault, what is accepted and what was found. param and code
    belong to the first error.
    """
    first = errors[0]
    shown = [_sentence(error) for error in errors[:_MAX_ERRORS]]
    if len(errors) > _MAX_ERRORS:
        shown.append(f"and {len(errors) - _MAX_ERRORS} more")
    return "; ".join(shown), _param(first), _code(first)


def quote(value: object) -> str:
    """Return a value as JSON, truncated to _MAX_QUOTE_CHARS before it is formatted."""
    if isinstance(value, bytes):
        value = value[:_MAX_QUOTE_CHARS].decode(errors="replace")
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _MAX_QUOTE_CHARS:
            return f"{text[:_MAX_QUOTE_CHARS]}..."
    return text


def shorten(text: str) -> str:
    """Return a request's text for a message, truncated to _MAX_QUOTE_CHARS."""
    return text if len(text) <= _MAX_QUOTE_CHARS else f"{text[:_MAX_QUOTE_CHARS]}..."


def _pieces(value: object) -> Iterator[str]:
    """Yield a value's JSON in pieces, none of which is long."""
    if isinstance(value, str):
        yield json.dumps(value[: _MAX_QUOTE_CHARS + 1])
    elif isinstance(value, list):
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for number, (name, item) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(name)
            yield ": "
            yield from _pieces(item)
        yield "}"
    else:
        yield json.dumps(value)


def _sentence(error: Mapping[str, Any]) -> str:
    param, kind, context = _param(error), error["type"], error.get("ctx", {})
    if kind == "missing":
        return f"'{param}' is missing"
    if "field" in context:
        return f"'{param}' {error['msg']}"
    if kind in _ACCEPTED:
        accepted = _ACCEPTED[kind].format(
            **{name: _short(value) for name, value in context.items()}
        )
    else:
        accepted = str(error["msg"]).removeprefix("Value error, ")
        accepted = accepted.replace("Input should be", "must be", 1)
    if param is None and kind == "value_error":
        return accepted
    if param is None:
        return (
            "the body must be a JSON object sent with 'content-type: application/json'; "
            f"found {quote(error['input'])}"
        )
    return f"'{param}' {accepted}; found {_found(kind, error['input'])}"


def _found(kind: str, value: Any) -> str:
    unit = _UNITS.get(kind)
    return f"{len(value)} {unit}" if unit and isinstance(value, Sized) else quote(value)


def _short(value: object) -> object:
    """Return a bound without a redundant fraction: 1.0 becomes 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _code(error: Mapping[str, Any]) -> str:
    known = {"unknown_field": "unknown_field", "unserved_field": "unsupported_field"}
    return known.get(error["type"], "invalid_value")


def _param(error: Mapping[str, Any]) -> str | None:
    """Return the field's dotted path. Parts like '<many>' are union branches, not names."""
    parts = [shorten(str(part)) for part in error["loc"] if not str(part).startswith("<")]
    field = error.get("ctx", {}).get("field")
    return ".".join([*parts, field] if field else parts) or None
