"""Counts the timers, writes and wake-ups of a stream, because times would be noisy."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from engine import EngineInfo, Request, TokenEvent
from engine.core.worker import EngineWorker
from server.app import create_app
from server.options import ServerOptions
from server.routes.sse_dialects import OPENAI
from tests.support.engine.fake_device import FakeDevice
from tests.support.server.byte_text import byte_codec
from tests.support.server.fakes import FakeEngine, app_with

_CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 60}


async def _stream_chat(body: dict[str, Any], *, tokens_per_step: int = 3) -> tuple[int, int, int]:
    """Return the numbers of engine steps, timers and body writes."""
    engine = FakeEngine("x" * 60, tokens_per_step=tokens_per_step)
    app = app_with(engine)
    writes = 0

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        async def write(message: Any) -> None:
            nonlocal writes
            writes += bool(message.get("body"))
            await send(message)

        await app(scope, receive, write)

    loop = asyncio.get_running_loop()
    timers, call_at = 0, loop.call_at

    def count(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return call_at(*args, **kwargs)

    transport = httpx.ASGITransport(counted)
    with patch.object(loop, "call_at", count):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    return 60 // tokens_per_step, timers, writes


@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_a_step_makes_one_write_and_sets_no_timer(tokens_per_step: int) -> None:
    steps, timers, writes = asyncio.run(_stream_chat(_CHAT, tokens_per_step=tokens_per_step))
    assert writes <= steps + 1  # the end: [DONE]
    assert timers <= 2  # of the whole response


def test_unicode_line_separators_are_escaped() -> None:
    text = "a\u2028b\u2029c\x85d\ne é"
    frame = OPENAI.frame({"text": text})
    assert len(frame.decode().splitlines()) == 2  # the event and the empty line
    assert "é" in frame.decode()
    assert json.loads(frame.removeprefix(b"data: ")) == {"text": text}


class Paced(FakeDevice):
    """Starts when it has all requests; runs a step after the last one's events are written."""

    info = EngineInfo(1000, 258, 4, ())

    def __init__(self, num_requests: int, *, is_streamed: bool) -> None:
        super().__init__()
        self._num_to_come = num_requests
        self.num_steps = 0
        self.written = threading.Semaphore(1 if is_streamed else 1000)

    @property
    def is_idle(self) -> bool:
        return self._num_to_come > 0 or super().is_idle

    def add(self, request: Request) -> None:
        super().add(request)
        self._num_to_come -= 1

    def step(self, meanwhile: Callable[[], None]) -> list[TokenEvent]:
        assert self.written.acquire(timeout=30), "the last event never came"
        self.num_steps += 1
        return super().step(meanwhile)


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one request."""

    steps: int  # of the engine
    wakes: int  # calls by other threads
    callbacks: int
    writes: int  # of the body


def _work(num_tokens: int, *, stream: bool, n: int = 1) -> Work:
    """Run a request in which each step commits one token per choice."""
    engine = Paced(n, is_streamed=stream)
    worker = EngineWorker(engine, num_threads=1)  # type: ignore[arg-type]
    app = create_app(
        engine=worker, text=byte_codec(), options=ServerOptions(served_name="tiny", keepalive_s=60)
    )
    body = {**_CHAT, "stream": stream, "max_tokens": num_tokens, "n": n}
    try:
        wakes, callbacks, writes = asyncio.run(_counted(app, body, engine.written))
    finally:
        worker.close()
    return Work(engine.num_steps, wakes, callbacks, writes)


async def _counted(
    app: Any, body: dict[str, Any], written: threading.Semaphore
) -> tuple[int, int, int]:
    wakes = callbacks = writes = 0
    loop, run = asyncio.get_running_loop(), asyncio.Handle._run
    call_soon_threadsafe = loop.call_soon_threadsafe

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def write(message: Any) -> None:
            nonlocal writes
            await send(message)
            if message.get("body"):
                writes += 1
                written.release()

        await app(scope, receive, write)

    def waking(*args: Any, **kwargs: Any) -> asyncio.Handle:
        nonlocal wakes
        wakes += 1
        return call_soon_threadsafe(*args, **kwargs)

    def running(self: asyncio.Handle) -> None:
        nonlocal callbacks
        callbacks += 1
        run(self)

    transport = httpx.ASGITransport(watched)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with (
            patch.object(loop, "call_soon_threadsafe", waking),
            patch.object(asyncio.Handle, "_run", running),
        ):
            response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return wakes, callbacks, writes


@pytest.mark.parametrize("n", [1, 4])
def test_a_step_of_a_stream_wakes_the_event_loop_once(n: int) -> None:
    short, long = (_work(count, stream=True, n=n) for count in (20, 100))
    more = long.steps - short.steps
    assert more == 80
    assert long.wakes - short.wakes == more
    assert long.writes - short.writes == more  # also for several responses of one request
    # The events, the loop's own reading of the wake-up, and the task that writes; fifty are of the
    # request itself. A bound, and not a count: two wake-ups may be read as one.
    assert long.callbacks <= 3 * long.steps + 60


def test_without_streaming_wake_ups_do_not_depend_on_length() -> None:
    short, long = _work(20, stream=False), _work(200, stream=False)
    assert long.steps - short.steps == 180
    assert long.wakes == short.wakes
    assert long.callbacks <= short.callbacks + 2  # two wake-ups may be read as one
