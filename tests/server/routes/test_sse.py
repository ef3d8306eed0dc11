"""Server-sent events at the edge: a client that does not read, and one that is gone."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import pytest

from server.errors.api_errors import ClientDisconnected
from server.generation.delta_queue import KeepAlive
from server.generation.deltas import Delta
from server.generation.generator import DeltaBatch
from server.routes.sse import EventStream, cancel_on_disconnect


class _Telling:
    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        yield {"text": delta.text}

    def end(self) -> Iterator[Mapping[str, object]]:
        yield {"end": True}


class _Source:
    """Deltas without an end, that remember whether they were closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def deltas(self) -> AsyncGenerator[DeltaBatch | KeepAlive, None]:
        try:
            while True:
                yield [(0, Delta("a", (97,), None, 0.0))]
        finally:
            self.is_closed = True


async def _gone_soon() -> dict[str, Any]:
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("never")


def test_a_client_that_stops_reading_and_then_leaves_cancels_its_work() -> None:
    async def scenario() -> tuple[bool, dict[str, Any]]:
        source = _Source()
        scope: dict[str, Any] = {"type": "http", "path": "/generate"}

        async def full(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()  # the connection takes no more bytes

        deltas = source.deltas()
        first = await anext(deltas)
        await EventStream(first=first, rest=deltas, encoder=_Telling())(scope, _gone_soon, full)
        return source.is_closed, scope["state"]

    is_closed, state = asyncio.run(scenario())
    assert is_closed
    assert state["status"] == 499


def test_a_connection_that_breaks_while_sending_closes_the_source() -> None:
    async def scenario() -> bool:
        source = _Source()

        async def broken(message: Any) -> None:
            raise OSError("broken pipe")

        deltas = source.deltas()
        stream = EventStream(first=await anext(deltas), rest=deltas, encoder=_Telling())
        with pytest.raises(OSError, match="broken pipe"):
            await stream({"type": "http", "path": "/"}, _never, broken)
        return source.is_closed

    assert asyncio.run(scenario())


def test_work_is_cancelled_when_its_client_is_gone() -> None:
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
            await cancel_on_disconnect(_gone_soon, work())
        return was_cancelled

    assert asyncio.run(scenario())


def test_work_that_is_done_or_fails_does_not_wait_for_its_client() -> None:
    async def done() -> int:
        return 5

    async def fails() -> int:
        raise ZeroDivisionError

    async def scenario() -> None:
        assert await cancel_on_disconnect(_never, done()) == 5
        with pytest.raises(ZeroDivisionError):
            await cancel_on_disconnect(_never, fails())

    asyncio.run(scenario())


def test_parts_go_the_short_way_where_there_is_one_and_the_head_does_not() -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        long_way: list[str] = []
        short_way: list[str] = []

        async def one_delta() -> AsyncGenerator[DeltaBatch | KeepAlive, None]:
            yield [(0, Delta("a", (97,), None, 0.0))]

        async def send(message: Any) -> None:
            long_way.append(message["type"])

        async def send_part(message: Any) -> None:
            short_way.append(message["type"])

        deltas = one_delta()
        stream = EventStream(first=await anext(deltas), rest=deltas, encoder=_Telling())
        scope = {"type": "http", "path": "/", "state": {"send_part": send_part}}
        await stream(scope, _never, send)
        return long_way, short_way

    long_way, short_way = asyncio.run(scenario())
    assert long_way[0] == "http.response.start"
    assert short_way == ["http.response.body"] * 2
    assert long_way[1:] == ["http.response.body"]  # the end of all parts
