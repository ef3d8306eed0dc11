"""Defines how each API writes server-sent events."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from server.errors.api_errors import Failure

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Some clients split lines here, although neither SSE nor JSON does.
_LINE_ENDS = (("\u2028", "\\u2028"), ("\u2029", "\\u2029"), ("\x85", "\\u0085"))


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API writes an event, the events of an error, and the end of a stream."""

    frame: Callable[[Mapping[str, object]], bytes]
    errors: Callable[[Failure], Sequence[Mapping[str, object]]]
    done: bytes


def _data(event: Mapping[str, object]) -> bytes:
    return b"data: " + _json(event) + b"\n\n"


def _named(event: Mapping[str, object]) -> bytes:
    return f"event: {event['type']}\n".encode() + _data(event)


def _json(event: Mapping[str, object]) -> bytes:
    text = _ENCODER.encode(event)
    if not text.isascii():
        for end, escaped in _LINE_ENDS:
            text = text.replace(end, escaped)
    return text.encode()


OPENAI = Dialect(frame=_data, errors=lambda failure: [failure.body], done=b"data: [DONE]\n\n")
ANTHROPIC = Dialect(frame=_named, errors=lambda failure: [failure.anthropic_body], done=b"")


def responses_dialect(
    errors: Callable[[Failure], Sequence[Mapping[str, object]]],
) -> Dialect:
    """Return the dialect of a response's stream, whose events are numbered, errors included."""
    return Dialect(frame=_named, errors=errors, done=b"")
