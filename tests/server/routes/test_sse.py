"""EventStream: clients that do not read, and disconnects."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import pytest

from server.errors.api_errors import ClientDisconnected
from server.generation.delta_queue import KeepAlive
from server.generation.deltas import Delta
from server.generation.generator import DeltaBatch
from server.routes.sse import EventStream, cancel_on_disconnect


class _TextEncoder:
    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        yield {"text": delta.text}

    def end(self) -> Iterator[Mapping[str, object]]:
        yield {"end": True}


class _Source:
    """An endless stream of deltas that records whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def deltas(self) -> AsyncGenerator[DeltaBatch | KeepAlive, None]:
        try:
            while True:
                yield [(0, Delta("a", (97,), None, 0.0))]
        finally:
            self.is_closed = True


async def _disconnect_soon() -> dict[str, Any]:
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


async def _no_disconnect() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("never")


def test_a_disconnect_of_a_client_that_does_not_read_cancels_its_request() -> None:
    async def scenario() -> tuple[bool, dict[str, Any]]:
        source = _Source()
        scope: dict[str, Any] = {"type": "http", "path": "/generate"}

        async def full(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()  # the connection takes no more bytes

        deltas = source.deltas()
        first = await anext(deltas)
        await EventStream(first=first, rest=deltas, encoder=_TextEncoder())(
            scope, _disconnect_soon, full
        )
        return source.is_closed, scope["state"]

    is_closed, state = asyncio.run(scenario())
    assert is_closed
    assert state["status"] == 499


def test_a_send_error_closes_the_deltas() -> None:
    async def scenario() -> bool:
        source = _Source()

        async def broken(message: Any) -> None:
            raise OSError("broken pipe")

        deltas = source.deltas()
        stream = EventStream(first=await anext(deltas), rest=deltas, encoder=_TextEncoder())
        with pytest.raises(OSError, match="broken pipe"):
            await stream({"type": "http", "path": "/"}, _no_disconnect, broken)
        return source.is_closed

    assert asyncio.run(scenario())


def test_a_disconnect_cancels_the_work() -> None:
    async def scenario() -> bool:
        was_cancelled = False

        async def work() -> None:
            nonlocal was_cancelled
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                was_cancelled = True
                raise

        with pytest.raises(ClientDisconnected):
            await cancel_on_disconnect(_disconnect_soon, work())
        return was_cancelled

    assert asyncio.run(scenario())


def test_finished_or_failed_work_does_not_wait_for_the_client() -> None:
    async def done() -> int:
        return 5

    async def fails() -> int:
        raise ZeroDivisionError

    async def scenario() -> None:
        assert await cancel_on_disconnect(_no_disconnect, done()) == 5
        with pytest.raises(ZeroDivisionError):
            await cancel_on_disconnect(_no_disconnect, fails())

    asyncio.run(scenario())


def test_chunks_use_send_part_and_the_head_does_not() -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        sent: list[str] = []
        parts: list[str] = []

        async def one_delta() -> AsyncGenerator[DeltaBatch | KeepAlive, None]:
            yield [(0, Delta("a", (97,), None, 0.0))]

        async def send(message: Any) -> None:
            sent.append(message["type"])

        async def send_part(message: Any) -> None:
            parts.append(message["type"])

        deltas = one_delta()
        stream = EventStream(first=await anext(deltas), rest=deltas, encoder=_TextEncoder())
        scope = {"type": "http", "path": "/", "state": {"send_part": send_part}}
        await stream(scope, _no_disconnect, send)
        return sent, parts

    sent, parts = asyncio.run(scenario())
    assert sent[0] == "http.response.start"
    assert parts == ["http.response.body"] * 2
    assert sent[1:] == ["http.response.body"]  # the end of all parts
