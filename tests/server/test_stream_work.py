"""What an event of a stream costs, counted: timers, frames, writes. Seconds would be noise."""

import asyncio
import json
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from server.dialects import OPENAI
from tests.server.fakes import FakeEngine, app_with

_CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 60}


async def _ask(body: dict[str, Any], *, tokens_per_step: int = 3) -> tuple[int, int, int]:
    """Steps of the engine, timers that were set, and writes of the body."""
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
            answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    return 60 // tokens_per_step, timers, writes


@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_a_step_is_one_write_and_sets_no_timer(tokens_per_step: int) -> None:
    steps, timers, writes = asyncio.run(_ask(_CHAT, tokens_per_step=tokens_per_step))
    assert writes <= steps + 1  # the end: [DONE]
    assert timers <= 2  # of the whole answer


def test_line_ends_that_some_clients_take_for_more_are_escaped() -> None:
    said = "a\u2028b\u2029c\x85d\ne é"
    frame = OPENAI.frame({"text": said})
    assert len(frame.decode().splitlines()) == 2  # the event and the empty line
    assert "é" in frame.decode()
    assert json.loads(frame.removeprefix(b"data: ")) == {"text": said}
