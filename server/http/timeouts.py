"""How long a request may wait and how long it may take; then it is ended with a 504."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from server.errors.api_errors import ApiError


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """In seconds from when a prompt is handed to the engine; None is no limit."""

    queue_s: float | None = None  # to the engine's beginning with it
    request_s: float | None = None  # to the end of its answer


async def in_time(
    answering: Coroutine[Any, Any, None],
    limits: TimeLimits,
    *,
    is_waiting: Callable[[], Awaitable[bool]],
) -> None:
    """Answer to the end. Raises ApiError (504) when a limit is reached; the answering is cancelled.

    is_waiting tells whether the engine has not begun yet; it is asked once, after queue_s.
    """
    try:
        async with asyncio.timeout(limits.request_s):
            if limits.queue_s is None:
                await answering
            else:
                await _not_queued_for(limits.queue_s, answering, is_waiting)
    except TimeoutError as error:
        raise ApiError(
            f"the answer was not complete after {limits.request_s:g} s, this server's limit; ask "
            "for fewer tokens or try again later",
            status=504,
            code="request_timeout",
        ) from error


async def _not_queued_for(
    queue_s: float, answering: Coroutine[Any, Any, None], is_waiting: Callable[[], Awaitable[bool]]
) -> None:
    task = asyncio.create_task(answering)
    try:
        done, _ = await asyncio.wait({task}, timeout=queue_s)
        if not done and await is_waiting():
            raise ApiError(
                f"the request waited in the queue for {queue_s:g} s, this server's limit; "
                "try again later",
                status=504,
                code="queue_timeout",
            )
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
