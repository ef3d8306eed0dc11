"""Writes the error that ends a stream whose replica has ended, as the server itself would."""

import re

from server.errors.api_errors import ANTHROPIC_PATH, Failure
from server.routes.sse_dialects import ANTHROPIC, OPENAI, responses_dialect

_SEQUENCE = re.compile(rb'"sequence_number":(\d+)')


def error_event(path: str, failure: Failure, last_part: bytes) -> bytes:
    """Return the last event of a stream. last_part: what was sent before it, for its number."""
    if path.startswith(ANTHROPIC_PATH):
        dialect = ANTHROPIC
    elif path.startswith("/v1/responses"):
        numbers = _SEQUENCE.findall(last_part)
        event = {
            "type": "error",
            "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
            "code": failure.code,
            "message": failure.message,
            "param": failure.param,
        }
        dialect = responses_dialect(lambda failure: [event])
    else:
        dialect = OPENAI
    return b"".join(map(dialect.frame, dialect.errors(failure)))
