"""Sends mixed requests to a tiny service for long, and checks that nothing grows.

    python -m tests.support.server.soak 100000
    python -m tests.support.server.soak 5000 demo      the demo pair

Requests go to all routes: whole, as streams, with grammars, and mutated ones that are refused. The
client abandons every seventh.
"""

import asyncio
import gc
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dspark.runtime.models import resolved_engine_config, running_engine
from dspark.runtime.text import load_text
from server.app import create_app
from server.options import ServerOptions
from server.settings.loading import load_settings
from tests.support.paths import ROOT
from tests.support.server.fakes import served
from tests.support.server.random_bodies import BODIES, check, content_of, mutated
from tests.support.server.tiny_service import TinyService, tiny_service

_CONCURRENCY = 8
_MAX_GROWTH_MB = 48
_MAX_MORE_DESCRIPTORS = 4  # connections that are just being closed
_JSON = {"content-type": "application/json"}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GRAMMARS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-c]{2,4}"},
    {"choice": ["yes", "no"]},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"ebnf": 'root ::= "a" | "b"'},
)


@dataclass(frozen=True, slots=True)
class Use:
    """What the process uses while no request runs."""

    rss_mb: float
    num_descriptors: int

    @classmethod
    def now(cls) -> "Use":
        gc.collect()
        num_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(num_pages * _PAGE_BYTES / 2**20, len(os.listdir("/dev/fd")))


def soak(service: TinyService, *, count: int, seed: int) -> Counter[str]:
    """Send `count` requests; return how many there were of each outcome.

    Fails if memory or descriptors grow after the first fifth, or pages stay in use.
    """
    outcomes = asyncio.run(_send(service.url, count=max(count // 5, 1), seed=seed))
    service.wait_until_idle()
    before = Use.now()
    outcomes += asyncio.run(_send(service.url, count=count - count // 5, seed=seed + 1))
    service.wait_until_idle()
    after = Use.now()
    assert after.rss_mb - before.rss_mb < _MAX_GROWTH_MB, (before, after)
    assert after.num_descriptors - before.num_descriptors <= _MAX_MORE_DESCRIPTORS, (before, after)
    return outcomes


async def _send(url: str, *, count: int, seed: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    numbers = iter(range(count))

    async def work(rng: random.Random) -> None:
        for number in numbers:
            outcomes[await _request(client, rng, is_abandoned=number % 7 == 6)] += 1

    async with httpx.AsyncClient(base_url=url, timeout=60, headers=_JSON) as client:
        await asyncio.gather(*(work(random.Random(seed * 100 + i)) for i in range(_CONCURRENCY)))
    return outcomes


async def _request(client: httpx.AsyncClient, rng: random.Random, *, is_abandoned: bool) -> str:
    """Send one request; return "abandoned", or its status."""
    path = rng.choice(list(BODIES))
    body: Any = BODIES[path]
    kind = rng.choice(("whole", "stream", "grammar", "mutated"))
    if kind == "stream" and "stream" in body:
        body = {**body, "stream": True}
    elif kind == "grammar" and path == "/generate":
        body = {"text": "hi", "sampling_params": {"max_new_tokens": 6, **rng.choice(_GRAMMARS)}}
    elif kind == "mutated":
        body = mutated(rng, mutated(rng, body))
    content = content_of(rng, body)
    async with client.stream("POST", path, content=content) as response:
        if is_abandoned:
            return "abandoned"
        await response.aread()
    check(path, response, content)
    return str(response.status_code)


@contextmanager
def demo_service(**options: Any) -> Iterator[TinyService]:
    """Serve the demo pair under the name of the tiny one; options: fields of ServerOptions."""
    settings = load_settings(ROOT / "configs" / "demo.yaml").settings
    config = resolved_engine_config(settings)
    options = {**options, "served_name": "tiny"}
    with running_engine(config) as engine:
        app = create_app(
            engine=engine, text=load_text(settings, config), options=ServerOptions(**options)
        )
        with served(app) as url:
            yield TinyService(url, engine)


def main() -> None:
    count, started = int(sys.argv[1]), time.monotonic()
    options = {"max_tokens_cap": 6, "default_max_tokens": 3, "log_requests": False}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        is_demo = sys.argv[2:] == ["demo"]
        pair = demo_service(**options) if is_demo else tiny_service(Path(folder), **options)
        service = stack.enter_context(pair)
        outcomes = soak(service, count=count, seed=1)
    seconds = time.monotonic() - started
    found = ", ".join(f"{name}: {number}" for name, number in sorted(outcomes.items()))
    sys.stdout.write(f"{count} requests in {seconds:.0f} s; {found}; {Use.now()}\n")


if __name__ == "__main__":
    main()
