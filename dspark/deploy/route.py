"""Derives what a router needs from a request: its leading text, and a replica that an id names."""

import re
from dataclasses import dataclass

from dspark.deploy.prefix_routing import block_keys

# Fields of a body with text, in the order of the prompt. A quote inside a JSON string is escaped,
# so a match is a key of an object.
_TEXT = re.compile(
    rb'[{,]\s*"(?:messages|prompt|input|text|input_ids|system|instructions|tools)"\s*:\s*(?=["\[])'
)
_REFERENCE = re.compile(
    rb'[{,]\s*"(?:previous_response_id"|type"\s*:\s*"item_reference"\s*,\s*"id")\s*:\s*'
    rb'"([^"\\]{1,128})"'
)
_RESPONSES = "/v1/responses"
_REPLICA = re.compile(r"(?:^|[-_])(r[0-9a-z]{8})-")
_LONGEST = 64 * 1024  # bytes of the text that are looked at


@dataclass(frozen=True, slots=True)
class Route:
    """What decides on the replica of a request."""

    keys: tuple[int, ...] = ()  # of the leading text, as `block_keys` returns them
    replica: str | None = None  # named by an id in the request
    excluded: frozenset[str] = frozenset()  # replicas that have refused the request, or died


def route_of(path: str, body: bytes) -> Route:
    """Return the route of a request. The body is searched, not parsed."""
    found = _TEXT.search(body)
    text = body[found.end() : found.end() + _LONGEST] if found else b""
    return Route(block_keys(text.decode(errors="replace")), _named_replica(path, body))


def _named_replica(path: str, body: bytes) -> str | None:
    """Return the replica that keeps the responses which a request names."""
    if not path.startswith(_RESPONSES):
        return None
    if len(path) > len(_RESPONSES):
        return replica_of(path[len(_RESPONSES) + 1 :])
    names = (found[1].decode(errors="replace") for found in _REFERENCE.finditer(body))
    return next((replica for name in names if (replica := replica_of(name))), None)


def replica_of(request_id: str) -> str | None:
    """Return the replica that an id carries: `resp_rk3j9x0aq-...` is of rk3j9x0aq."""
    found = _REPLICA.search(request_id[:128])
    return found[1] if found else None


def replica_name(unique_id: str) -> str:
    """Name a replica in ids and metrics. unique_id: Ray Serve's, 8 letters and digits."""
    return f"r{unique_id}"
