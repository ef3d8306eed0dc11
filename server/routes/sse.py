"""Server-sent events, and what happens when the client is gone: the work is cancelled."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors.api_errors import CLIENT_CLOSED, ClientGone, failure_of
from server.generation.delta_queue import Silence
from server.generation.deltas import Delta
from server.generation.generator import Deltas, Gains
from server.routes.sse_dialects import OPENAI, Dialect

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KEEPALIVE = b": keepalive\n\n"


class Encoder(Protocol):
    """One API's way of telling a stream. Keeps what it has to remember between events."""

    def encode(self, index: int, delta: Delta) -> Iterable[Mapping[str, object]]:
        """The events for what answer number `index` gained; none if there is nothing to tell."""
        ...

    def end(self) -> Iterable[Mapping[str, object]]:
        """The events after the last answer has ended."""
        ...


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client closes the connection first.

    Raises ClientGone then.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(Response):
    """A response of server-sent events, in an API's dialect: to its end, or to an error event.

    Leaving it by any door (end, error, lost client, shutdown) closes the deltas, and so
    cancels what the engine still does for them.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        *,
        first: Gains | Silence,
        rest: Deltas,
        encoder: Encoder,
        dialect: Dialect = OPENAI,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._encoder = encoder
        self._dialect = dialect

    @classmethod
    async def start(
        cls, request: Request, deltas: Deltas, encoder: Encoder, dialect: Dialect = OPENAI
    ) -> "EventStream":
        """Waits for the first sign of life, so that a refusal is still a status code."""
        first = await unless_gone(request.receive, anext(deltas))
        return cls(first=first, rest=deltas, encoder=encoder, dialect=dialect)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        try:
            await unless_gone(receive, self._send_all(send, scope["path"], state))
        except ClientGone:
            state["status"] = CLIENT_CLOSED
        finally:
            await self._rest.aclose()

    async def _send_all(self, send: Send, path: str, state: dict[str, Any]) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        send_part: Send = state.get("send_part", send)
        try:
            await _send(send_part, self._frames(self._first))
            async for gains in self._rest:
                await _send(send_part, self._frames(gains))
            await _send(send_part, self._written(self._encoder.end()) + self._dialect.done)
        except Exception as error:
            failure = failure_of(error)
            state["status"] = failure.status
            if failure.status >= 500:
                logger.error("path=%s: the stream broke off", path, exc_info=error)
            await _send(send, self._written([self._dialect.error(failure)]))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _frames(self, gains: Gains | Silence) -> bytes:
        if isinstance(gains, Silence):
            return _KEEPALIVE
        return b"".join([self._written(self._encoder.encode(*gain)) for gain in gains])

    def _written(self, events: Iterable[Mapping[str, object]]) -> bytes:
        return b"".join(map(self._dialect.frame, events))


async def _send(send: Send, frames: bytes) -> None:
    if frames:
        await send({"type": "http.response.body", "body": frames, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
