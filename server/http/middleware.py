"""Wraps every route: request ids, body limit, HEAD requests, internal errors.

Plain ASGI, because Starlette's BaseHTTPMiddleware hides a disconnect from the routes.
"""

import logging
import re
from collections.abc import Mapping
from uuid import uuid4

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors.api_errors import ANTHROPIC_PATH, Failure, failure_of

logger = logging.getLogger(__name__)

_ORIGIN = re.compile(r"https?://[^/]*", re.IGNORECASE)
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """Reads the client's X-Request-Id, or makes one, and returns it in the response.

    Stores it as `request.state.request_id`, after the name of the replica if there is one. A value
    other than 1 to 128 visible ASCII characters is replaced.
    """

    def __init__(self, app: ASGIApp, *, replica: str | None = None) -> None:
        self._app = app
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid4().hex
        own_id = request_id if self._replica is None else f"{self._replica}-{request_id}"
        scope.setdefault("state", {})["request_id"] = own_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if scope["path"].startswith(ANTHROPIC_PATH):
                    headers["request-id"] = request_id  # the name in that API
            await send(message)

        await self._app(scope, receive, send_with_id)


class DirectSend:
    """Stores the connection's `send` as `state.send_part`, for the chunks of a streamed body.

    The other middleware only handles response heads. Without it each chunk would pass about seven
    more calls.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["send_part"] = send
        await self._app(scope, receive, send)


class AbsoluteTargets:
    """Serves a request for `http://host/path`, as sent to a proxy, as one for `/path`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (origin := _ORIGIN.match(scope["path"])):
            scope = {**scope, "path": scope["path"][origin.end() :] or "/"}
        await self._app(scope, receive, send)


class HeadRequests:
    """Handles HEAD as GET; the web server omits the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses a body of more than max_bytes before it is in memory.

    Paths of max_bytes_of have lower limits.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_bytes_of: Mapping[str, int]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_bytes_of = max_bytes_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        limit = min(self._max_bytes, self._max_bytes_of.get(scope["path"], self._max_bytes))
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            failure = _too_large(limit, announced)
            return await failure.response(scope["path"])(scope, receive, send)
        num_read = 0

        async def counting_receive() -> Message:
            nonlocal num_read
            message = await receive()
            num_read += len(message.get("body", b""))
            if num_read > limit:
                failure = _too_large(limit, f"at least {num_read}")
                raise HTTPException(413, failure.message)
            return message

        await self._app(scope, counting_receive, send)


class InternalErrors:
    """Turns an unexpected exception into a 500 response and logs its traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            logger.exception("path=%s status=500", scope["path"])
            await failure_of(error).response(scope["path"])(scope, receive, send)


def _too_large(limit: int, found: str) -> Failure:
    message = f"the body must be at most {limit} bytes; found {found}"
    return Failure(413, message, code="body_too_large")
