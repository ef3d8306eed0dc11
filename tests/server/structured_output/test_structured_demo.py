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
from tests.support.server.clients import chat
from tests.support.server.grammar_cases import BOUNDED

pytestmark = [pytest.mark.weights, pytest.mark.slow]

logger = logging.getLogger(__name__)


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


@pytest.mark.parametrize("num_together", [1, 8, 16])
def test_every_finished_output_is_valid(url: str, num_together: int) -> None:
    reasons: list[str] = []

    async def one(client: httpx.AsyncClient, turn: asyncio.Semaphore, name: str, at: int) -> None:
        async with turn:
            text, reason = await chat(client, _body(name, at), stream=at % 2 == 1)
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
