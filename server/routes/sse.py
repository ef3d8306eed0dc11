"""Streams server-sent events; cancels the work when the client disconnects."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors.api_errors import CLIENT_CLOSED, ApiError, ClientDisconnected, failure_of
from server.generation.delta_queue import KeepAlive
from server.generation.deltas import Delta
from server.generation.generator import DeltaBatch, DeltaStream
from server.routes.sse_dialects import OPENAI, Dialect

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KEEPALIVE = b": keepalive\n\n"


class Encoder(Protocol):
    """Encodes the deltas of one response as events of one API; keeps state between them."""

    def encode(self, index: int, delta: Delta) -> Iterable[Mapping[str, object]]:
        """Return the events for a delta of completion number `index`, possibly none."""
        ...

    def end(self) -> Iterable[Mapping[str, object]]:
        """Return the events after the last completion has finished."""
        ...


async def cancel_on_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`. On a disconnect, cancel it and raise ClientDisconnected."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


class EventStream(Response):
    """Sends server-sent events in an API's dialect; an error becomes the last event.

    Every exit (end, error, disconnect, shutdown) closes the deltas, which cancels the engine's
    requests.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        *,
        first: DeltaBatch | KeepAlive,
        rest: DeltaStream,
        encoder: Encoder,
        dialect: Dialect = OPENAI,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """on_end is called at every exit."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._encoder = encoder
        self._dialect = dialect
        self._on_end = on_end

    @classmethod
    async def start(
        cls,
        request: Request,
        deltas: DeltaStream,
        encoder: Encoder,
        dialect: Dialect = OPENAI,
        on_end: Callable[[], None] = lambda: None,
    ) -> "EventStream":
        """Wait for the first batch, so that a refused request still gets a status code."""
        try:
            first = await cancel_on_disconnect(request.receive, anext(deltas))
        except BaseException:
            on_end()
            raise
        return cls(first=first, rest=deltas, encoder=encoder, dialect=dialect, on_end=on_end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        try:
            await cancel_on_disconnect(receive, self._send_all(send, scope["path"], state))
        except ClientDisconnected:
            state["status"] = CLIENT_CLOSED
        finally:
            await self._rest.aclose()
            self._on_end()

    async def _send_all(self, send: Send, path: str, state: dict[str, Any]) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        send_part: Send = state.get("send_part", send)
        try:
            await _send(send_part, self._frames(self._first))
            async for batch in self._rest:
                await _send(send_part, self._frames(batch))
            await _send(send_part, self._encoded(self._encoder.end()) + self._dialect.done)
        except Exception as error:
            failure = failure_of(error)
            state["status"] = failure.status
            if isinstance(error, ApiError):
                logger.warning("path=%s: the stream ended early: %s", path, failure.message)
            elif failure.status >= 500:
                logger.error("path=%s: the stream failed", path, exc_info=error)
            await _send(send, self._encoded(self._dialect.errors(failure)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _frames(self, batch: DeltaBatch | KeepAlive) -> bytes:
        if isinstance(batch, KeepAlive):
            return _KEEPALIVE
        return b"".join([self._encoded(self._encoder.encode(*item)) for item in batch])

    def _encoded(self, events: Iterable[Mapping[str, object]]) -> bytes:
        return b"".join(map(self._dialect.frame, events))


async def _send(send: Send, frames: bytes) -> None:
    if frames:
        await send({"type": "http.response.body", "body": frames, "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
