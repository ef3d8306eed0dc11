"""Parses and validates a request body; a refusal costs little more than its parse."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from server.errors.validation_errors import InvalidBody, describe
from server.protocol.json_bounds import bounds_error

B = TypeVar("B", bound=BaseModel)


def read_body(content: bytes, model: type[B]) -> B:
    """Return the body as an instance of its model. Raises InvalidBody."""
    if not content:
        raise InvalidBody("the body is missing: send a JSON object", None, "invalid_value")
    value = _parsed(content)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidBody(*describe(error.errors(include_url=False))) from None


def _parsed(content: bytes) -> Any:
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        problem = bounds_error(text)
        if problem is not None:
            raise InvalidBody(f"the body {problem}", None, "invalid_value")
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at character {error.pos}"
    except UnicodeDecodeError as error:
        message = f"the body cannot be read as JSON: found bytes that are not {error.encoding}"
    except ValueError:  # Python's limit on the digits of an integer
        message = "the body cannot be read as JSON: found an integer of more than 4300 digits"
    raise InvalidBody(message, None, "invalid_json")
