"""A list that is longer than the engine's slots and queue goes in portions."""

import asyncio
from typing import Any

import pytest

from engine import EngineBusy
from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine
from tests.support.server.responses import error_of


class SmallEngine(FakeEngine):
    """Refuses requests while three are running."""

    most = 0

    async def generate(self, request: Any, on_event: Any) -> None:
        if len(self.running) >= 3:
            raise EngineBusy("3 requests are running")
        self.most = max(self.most, 1 + len(self.running))
        await super().generate(request, on_event)
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True])
def test_every_prompt_of_a_long_list_is_completed(connect: Connect, stream: bool) -> None:
    engine = SmallEngine()
    body = {"prompt": [f"p{i}" for i in range(20)], "stream": stream}
    response = connect(engine, capacity=3).post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.text.count('"finish_reason":"stop"') == 20
    assert engine.most == 3


def test_a_list_that_is_refused_at_once_is_refused_as_a_whole(connect: Connect) -> None:
    client = connect(FakeEngine(refusal=EngineBusy("full")), capacity=3)
    error_of(client.post("/v1/completions", json={"prompt": ["a", "b", "c", "d"]}), 429)
