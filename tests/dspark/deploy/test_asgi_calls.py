"""An application gets a request without a socket, and a disconnect where its reader leaves."""

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from dspark.deploy.asgi_calls import call_asgi, portable

SCOPE: Scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "app": object()}


def test_messages_come_in_batches_of_those_that_are_there() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"!", "more_body": False})

    async def run() -> list[list[Any]]:
        return [batch async for batch in call_asgi(app, portable(SCOPE), b"hello")]

    first, second = asyncio.run(run())
    assert [message["type"] for message in first] == ["http.response.start", "http.response.body"]
    assert (first[1]["body"], second[0]["body"]) == (b"hello", b"!")


def test_a_reader_that_leaves_is_a_disconnect() -> None:
    received: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2):
            received.append((await receive())["type"])

    async def run() -> None:
        call = call_asgi(app, SCOPE, b"")
        await anext(call)
        await asyncio.sleep(0)
        await call.aclose()

    asyncio.run(run())
    assert received == ["http.request", "http.disconnect"]


def test_a_cancelled_reader_is_a_disconnect() -> None:
    received: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        received.append((await receive())["type"])

    async def read() -> None:
        async for _ in call_asgi(app, SCOPE, b""):
            pass

    async def run() -> None:
        reader = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    asyncio.run(run())
    assert received == ["http.disconnect"]


def test_objects_of_the_web_server_stay_behind() -> None:
    assert portable(SCOPE).keys() == {"asgi", "type", "method", "path", "headers"}
