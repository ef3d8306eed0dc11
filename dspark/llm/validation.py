"""Turns what the server's models and stages raise into Python's own exceptions."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from engine import RequestRejected
from server.errors.api_errors import ApiError
from server.errors.validation_errors import describe
from server.settings.schema import SettingsError


def json_value(name: str, value: object) -> Any:
    """Return the value as JSON carries it: tuples become lists, keys become strings.

    Raises ValueError for what JSON has no form for.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"'{name}' must be made of text, numbers, lists and dicts; found "
            f"{type(value).__name__} ({error})"
        ) from None


@contextmanager
def python_errors(*, where: str = "") -> Iterator[None]:
    """Raise refusals as ValueError in one sentence, and a limit on time as TimeoutError.

    where is put before the sentence.
    """
    try:
        yield
    except ValidationError as error:
        message, _, _ = describe(error.errors(include_url=False))
        raise ValueError(where + message) from None
    except ApiError as error:
        kind = TimeoutError if error.failure.status == 504 else ValueError
        raise kind(where + str(error)) from None
    except (RequestRejected, SettingsError) as error:
        raise ValueError(where + str(error)) from None
    except ValueError as error:
        if not where:
            raise
        raise ValueError(where + str(error)) from None
