"""How the APIs write server-sent events."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from server.errors import Failure


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API writes an event, an error and the end."""

    frame: Callable[[Mapping[str, object]], bytes]
    error: Callable[[Failure], Mapping[str, object]]
    done: bytes


def _data(event: Mapping[str, object]) -> bytes:
    return b"data: " + _json(event) + b"\n\n"


def _named(event: Mapping[str, object]) -> bytes:
    return f"event: {event['type']}\n".encode() + _data(event)


def _json(event: Mapping[str, object]) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


OPENAI = Dialect(frame=_data, error=lambda failure: failure.body, done=b"data: [DONE]\n\n")
ANTHROPIC = Dialect(frame=_named, error=lambda failure: failure.anthropic_body, done=b"")
