"""Calls an ASGI application with a request that is complete, and yields what it sends."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import ASGIApp, Message, Scope

_ABORT_S = 5.0  # for the application to end its work after a disconnect

# What a scope carries from one process to another; the rest is objects of the web server.
_FIELDS = (
    "type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path",
    "headers", "client", "server",
)  # fmt: skip


def portable(scope: Scope) -> Scope:
    """Return the scope without what cannot be sent to another process."""
    return {"asgi": {"version": "3.0"}} | {name: scope[name] for name in _FIELDS if name in scope}


async def call_asgi(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
    """Yield the messages of the response, in batches of those that are there at a time.

    Closing the generator, or cancelling its consumer, is a disconnect for the application.
    """
    messages: list[Message] = []
    has_news, has_left = asyncio.Event(), asyncio.Event()
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)
        has_news.set()

    work = asyncio.ensure_future(app(scope, receive, send))
    work.add_done_callback(lambda _: has_news.set())
    try:
        while messages or not work.done():
            if not messages:
                await has_news.wait()
            has_news.clear()
            batch, messages[:] = messages[:], []
            if batch:
                yield batch
        work.result()
    finally:
        has_left.set()
        if not work.done():
            await asyncio.wait({work}, timeout=_ABORT_S)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
