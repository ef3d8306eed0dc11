"""How long a request may wait and how long it may take; then it is ended with a 504."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine import TokenEvent
from server.errors import ApiError


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """In seconds from when a prompt is handed to the engine; None is no limit."""

    queue_s: float | None = None  # to the engine's beginning with it
    request_s: float | None = None  # to the end of its answer


async def in_time(
    events: AsyncGenerator[TokenEvent, None],
    limits: TimeLimits,
    *,
    is_queued: Callable[[], Awaitable[bool]],
) -> AsyncGenerator[TokenEvent, None]:
    """The events, to the one with a finish. Raises ApiError (504) when a limit is reached.

    The caller closes `events`, which cancels the request. is_queued tells whether the engine has
    not begun yet; it is asked once, after queue_s without an event.
    """
    now = asyncio.get_running_loop().time()
    ends_at = None if limits.request_s is None else now + limits.request_s
    async with _until(ends_at, limits.request_s):
        event = await _first(events, limits.queue_s, is_queued)
    while True:
        yield event
        if event.finish is not None:
            return
        if ends_at is None:
            event = await anext(events)
            continue
        async with _until(ends_at, limits.request_s):
            event = await anext(events)


async def _first(
    events: AsyncGenerator[TokenEvent, None],
    queue_s: float | None,
    is_queued: Callable[[], Awaitable[bool]],
) -> TokenEvent:
    first = asyncio.ensure_future(anext(events))
    try:
        done, _ = await asyncio.wait({first}, timeout=queue_s)
        if not done and await is_queued():
            raise ApiError(
                f"the request waited in the queue for {queue_s:g} s, this server's limit; "
                "try again later",
                status=504,
                code="queue_timeout",
            )
        return await first
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@asynccontextmanager
async def _until(ends_at: float | None, seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(ends_at):
            yield
    except TimeoutError as error:
        raise ApiError(
            f"the answer was not complete after {seconds:g} s, this server's limit; ask for fewer "
            "tokens or try again later",
            status=504,
            code="request_timeout",
        ) from error
