"""Who may ask for answers, and who may steer the server."""

import hmac
from collections.abc import Collection
from dataclasses import dataclass, field

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors.api_errors import ApiError, Failure


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Of each kind any number. Where there is none, nobody is asked for one.

    Admin keys open every route. While there are any, the routes that steer the server take no
    other; otherwise those take a caller's key, as the rest does.
    """

    callers: tuple[str, ...] = field(default=(), repr=False)
    admins: tuple[str, ...] = field(default=(), repr=False)


class ApiKeys:
    """Asks for a key, as `Authorization: Bearer KEY` or `x-api-key: KEY`, on all but open paths.

    Leaves in the request's state whether it may steer, for `may_steer`.
    """

    def __init__(self, app: ASGIApp, *, keys: KeyRing, open_paths: Collection[str]) -> None:
        self._app = app
        self._callers = [key.encode() for key in keys.callers]
        self._admins = [key.encode() for key in keys.admins]
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            return await self._app(scope, receive, send)
        given = _given_key(Headers(scope=scope))
        is_admin, is_caller = _is_one_of(given, self._admins), _is_one_of(given, self._callers)
        if self._callers and not is_admin and not is_caller:
            return await _REFUSAL.response(scope["path"])(scope, receive, send)
        state = scope.setdefault("state", {})
        state["may_steer"] = is_admin or not self._admins
        state["has_key"] = is_admin or is_caller
        await self._app(scope, receive, send)


def may_steer(request: Request) -> None:
    """Raises ApiError 401 or 403 for a request that needs an admin key and has none."""
    if request.state.may_steer:
        return
    if not request.state.has_key:
        raise ApiError(_REFUSAL.message, status=401, code="invalid_api_key")
    raise ApiError(
        f"{request.url.path} steers the server and needs an admin key; this key is a caller's",
        status=403,
        code="admin_key_required",
    )


def _given_key(headers: Headers) -> bytes:
    """The key in either header, as the bytes that were sent; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.encode("latin-1")
    return headers.get("x-api-key", "").encode("latin-1")


def _is_one_of(given: bytes, keys: list[bytes]) -> bool:
    """Takes as long for a near miss as for any other, and compares with every key."""
    return sum(hmac.compare_digest(given, key) for key in keys) > 0


_REFUSAL = Failure(
    401,
    "missing or wrong API key; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
    code="invalid_api_key",
)
