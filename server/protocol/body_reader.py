"""Parses and validates a request body; a refusal costs little more than its parse."""

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from server.errors.validation_errors import InvalidBody, describe, quote
from server.protocol.json_scan import bounds_error, may_hold_infinite, may_hold_surrogates

B = TypeVar("B", bound=BaseModel)


def read_body(content: bytes, model: type[B]) -> B:
    """Return the body as an instance of its model. Raises InvalidBody."""
    if not content:
        raise InvalidBody("the body is missing: send a JSON object", None, "invalid_value")
    text, value = _parsed(content)
    try:
        body = model.model_validate(value)
    except ValidationError as error:
        raise InvalidBody(*describe(error.errors(include_url=False))) from None
    # Values that JSON cannot carry back may be in a field that no validator reads.
    if may_hold_surrogates(text) and not _is_unicode(json.dumps(value, ensure_ascii=False)):
        _refuse(value, _has_surrogate, "must be valid Unicode, without lone surrogates")
    if may_hold_infinite(text):
        _refuse(value, _is_infinite, "must be a finite number")
    return body


def _refuse(value: object, is_wrong: Callable[[object], bool], accepted: str) -> None:
    """Raise InvalidBody for the first name or value that is wrong."""
    path = _path_to(value, is_wrong)
    if path is not None:
        field = ".".join(path)
        raise InvalidBody(f"'{field}' {accepted}", field, "invalid_value")


def _has_surrogate(value: object) -> bool:
    return isinstance(value, str) and not _is_unicode(value)


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _path_to(value: object, is_wrong: Callable[[object], bool]) -> list[str] | None:
    """Return the path of the first name or value that is wrong; None without one."""
    if is_wrong(value):
        return []
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for name, item in items:
        if is_wrong(name):
            return [quote(name)[1:-1]]
        path = _path_to(item, is_wrong)
        if path is not None:
            return [quote(name).strip('"'), *path]
    return None


def _parsed(content: bytes) -> tuple[str, Any]:
    """Return the text and its value. Raises InvalidBody."""
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        problem = bounds_error(text)
        if problem is not None:
            raise InvalidBody(f"the body {problem}", None, "invalid_value")
        return text, json.loads(text)
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at character {error.pos}"
    except UnicodeDecodeError as error:
        message = f"the body cannot be read as JSON: found bytes that are not {error.encoding}"
    except ValueError:  # Python's limit on the digits of an integer
        message = "the body cannot be read as JSON: found an integer of more than 4300 digits"
    raise InvalidBody(message, None, "invalid_json")
