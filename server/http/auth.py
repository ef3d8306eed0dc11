"""Checks API keys: of callers, and of admins for the routes that control the server."""

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass, field

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors.api_errors import ApiError, Failure


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The accepted keys of both kinds. Without any key the server is open.

    Admin keys open every route. If there are any, admin routes accept no other key; otherwise
    admin routes accept a caller's key.
    """

    callers: tuple[str, ...] = field(default=(), repr=False)
    admins: tuple[str, ...] = field(default=(), repr=False)


class ApiKeys:
    """Requires a key, as `Authorization: Bearer KEY` or `x-api-key: KEY`, on all but open paths.

    Where a request has both headers, one right key is enough.
    Stores `is_admin` and `has_key` in the request's state, for `require_admin`, and `owner`: a
    digest of the key for what is kept per key, empty without keys.
    """

    def __init__(self, app: ASGIApp, *, keys: KeyRing, open_paths: Collection[str]) -> None:
        self._app = app
        self._callers = [key.encode() for key in keys.callers]
        self._admins = [key.encode() for key in keys.admins]
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            return await self._app(scope, receive, send)
        given = _given_keys(scope)
        has_admin_key, has_caller_key = (
            _is_one_of(given, self._admins),
            _is_one_of(given, self._callers),
        )
        if self._callers and not has_admin_key and not has_caller_key:
            return await _INVALID_KEY.response(scope["path"])(scope, receive, send)
        state = scope.setdefault("state", {})
        state["is_admin"] = has_admin_key or not self._admins
        state["has_key"] = has_admin_key or has_caller_key
        state["owner"] = _digest(
            [k for k in self._admins + self._callers if _is_one_of(given, [k])]
        )
        await self._app(scope, receive, send)


def has_key(scope: Scope, keys: KeyRing) -> bool:
    """Return whether a request has a key that callers need, or none is needed."""
    accepted = [key.encode() for key in keys.callers + keys.admins]
    return not keys.callers or _is_one_of(_given_keys(scope), accepted)


def require_admin(request: Request) -> None:
    """Raise ApiError (401 or 403) for a request without the admin key that it needs."""
    if request.state.is_admin:
        return
    if not request.state.has_key:
        raise ApiError(_INVALID_KEY.message, status=401, code="invalid_api_key")
    raise ApiError(
        f"{request.url.path} controls the server and needs an admin key; this key is a caller's",
        status=403,
        code="admin_key_required",
    )


def _given_keys(scope: Scope) -> list[bytes]:
    """Return the keys of both headers as the bytes that were sent."""
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    keys = [key if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
    return [key.encode("latin-1") for key in keys if key]


def _digest(accepted: list[bytes]) -> str:
    """Return a digest of the first accepted key; empty without any."""
    return hashlib.sha256(accepted[0]).hexdigest() if accepted else ""


def _is_one_of(given: list[bytes], keys: list[bytes]) -> bool:
    """Compare all with all in constant time."""
    return sum(hmac.compare_digest(one, key) for one in given for key in keys) > 0


_INVALID_KEY = Failure(
    401,
    "missing or wrong API key; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
    code="invalid_api_key",
)
