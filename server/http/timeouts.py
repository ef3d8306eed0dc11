"""Limits the time in the queue and the total time of a request; a 504 ends it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from server.errors.api_errors import ApiError


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds from submission to the engine; None is no limit."""

    queue_s: float | None = None  # to the first step
    request_s: float | None = None  # to the end


async def in_time(
    generation: Coroutine[Any, Any, None],
    limits: TimeLimits,
    *,
    is_queued: Callable[[], Awaitable[bool]],
) -> None:
    """Await the generation. At a limit, cancel it and raise ApiError (504).

    is_queued returns whether the request still waits in the queue; called once, after queue_s.
    """
    try:
        async with asyncio.timeout(limits.request_s):
            if limits.queue_s is None:
                await generation
            else:
                await _not_queued_for(limits.queue_s, generation, is_queued)
    except TimeoutError as error:
        raise ApiError(
            f"the output was not complete after {limits.request_s:g} s, this server's limit; "
            "request fewer tokens or try again later",
            status=504,
            code="request_timeout",
        ) from error


async def _not_queued_for(
    queue_s: float, generation: Coroutine[Any, Any, None], is_queued: Callable[[], Awaitable[bool]]
) -> None:
    task = asyncio.create_task(generation)
    try:
        done, _ = await asyncio.wait({task}, timeout=queue_s)
        if not done and await is_queued():
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
