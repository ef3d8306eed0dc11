"""Structured output of the demo pair at several concurrencies, streamed and not."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.support.live_server import serving
from tests.support.server.grammar_cases import BOUNDED

pytestmark = [pytest.mark.weights, pytest.mark.slow]

logger = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def url(demo_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(log=tmp_path_factory.mktemp("serve") / "log") as base:
        yield base


def _body(name: str, seed: int) -> dict[str, Any]:
    schema = json.dumps(BOUNDED[name])
    return {
        "messages": [{"role": "user", "content": f"Answer with JSON of this schema: {schema}"}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": BOUNDED[name]}},
        "max_tokens": 200,
        "temperature": 0.0 if seed % 4 == 0 else 0.8,
        "seed": seed,
        "return_speculation": True,
    }


async def _whole(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, str]:
    choice = (await client.post(CHAT, json=body)).json()["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


async def _streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, str]:
    text, reason = "", ""
    async with client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
    return text, reason


@pytest.mark.parametrize("num_together", [1, 8, 16])
def test_every_finished_output_is_valid(url: str, num_together: int) -> None:
    reasons: list[str] = []

    async def one(client: httpx.AsyncClient, turn: asyncio.Semaphore, name: str, at: int) -> None:
        async with turn:
            text, reason = await (_streamed if at % 2 else _whole)(client, _body(name, at))
        reasons.append(reason)
        if reason == "stop":
            jsonschema_rs.validator_for(BOUNDED[name]).validate(json.loads(text))

    async def everything() -> None:
        turn = asyncio.Semaphore(num_together)
        async with httpx.AsyncClient(base_url=url, timeout=600) as client:
            runs = [one(client, turn, name, at) for at, name in enumerate(BOUNDED, num_together)]
            await asyncio.gather(*runs)

    asyncio.run(everything())
    logger.info("%d together: %d of %d cut", num_together, reasons.count("length"), len(reasons))
    assert set(reasons) <= {"stop", "length"}
    assert len(reasons) == len(BOUNDED)
    assert reasons.count("length") < 0.05 * len(reasons) + 1
