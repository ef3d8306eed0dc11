"""Measures what the server adds to an engine: detokenising, and events over HTTP.

A stub engine replays fixed tokens at once. All time is that of the server, the connection and the
client, which shares this process.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import httpx
import uvicorn

from dspark.bench.http.backends import BACKENDS, Sampling
from dspark.bench.http.streamed_request import send_request
from dspark.bench.report.statistics import Spread
from engine import (
    EngineClient,
    EngineInfo,
    EngineSnapshot,
    Finish,
    FinishReason,
    Request,
    SpeculationStats,
    TokenEvent,
)
from server.app import create_app
from server.options import ServerOptions
from server.text.tokenizer import TextCodec

_REPETITIONS = 7
_EVENTS = 128  # of one answer
_START_S = 30.0


@dataclass(frozen=True, slots=True)
class ServingOverhead:
    """Microseconds that the server adds to the engine's time."""

    detokenising_us: Spread  # per token
    http_us: Spread  # per event: detokenising, JSON, both ends of the connection
    tokens_per_event: int

    def lines(self) -> list[str]:
        count = self.tokens_per_event
        return [
            f"detokenising: {self.detokenising_us.median:.0f} µs a token, timed alone",
            f"HTTP: {self.http_us.median:.0f} µs an event of {count} tokens, from an engine that "
            "only replays; detokenising and the client included",
        ]

    def values(self) -> dict[str, object]:
        return {
            "detokenising_us_per_token": self.detokenising_us.values(),
            "http_us_per_event": self.http_us.values(),
            "http_tokens_per_event": self.tokens_per_event,
        }


def measure_serving_overhead(
    text: TextCodec, sample: str, *, tokens_per_event: int
) -> ServingOverhead:
    """Time detokenising and HTTP for an answer that repeats the text `sample`."""
    token_ids = text.encode(sample, add_special_tokens=False)
    repeats = -(-_EVENTS * tokens_per_event // len(token_ids))
    script = (token_ids * repeats)[: _EVENTS * tokens_per_event]
    return ServingOverhead(
        detokenising_us=Spread.of([_detokenise(text, script) for _ in range(_REPETITIONS)]),
        http_us=Spread.of(asyncio.run(_stream(text, script, tokens_per_event))),
        tokens_per_event=tokens_per_event,
    )


def _detokenise(text: TextCodec, token_ids: Sequence[int]) -> float:
    decoder = text.decoder()
    started = time.perf_counter()
    for token_id in token_ids:
        decoder.push(token_id)
    decoder.flush()
    return 1e6 * (time.perf_counter() - started) / len(token_ids)


async def _stream(text: TextCodec, script: Sequence[int], tokens_per_event: int) -> list[float]:
    """Return microseconds per event of each stream, after a warm-up."""
    engine = _Replay(script, tokens_per_event)
    options = ServerOptions(served_name="replay", log_requests=False)
    app = create_app(engine=cast(EngineClient, engine), text=text, options=options)
    backend = BACKENDS["openai"]
    body = backend.body(({"role": "user", "content": "go"},), Sampling(len(script)), model="replay")
    micros = []
    with _listening(app) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            for i in range(1 + _REPETITIONS):
                record = await send_request(client, backend, body, prompt=i)
                assert record.failure is None, record.failure
                events = len(record.event_times) - 1
                micros.append(1e6 * (record.event_times[-1] - record.event_times[0]) / events)
    return micros[1:]


class _Replay:
    """A stub of EngineClient that replays a script."""

    def __init__(self, script: Sequence[int], tokens_per_event: int) -> None:
        self._script = script
        self._step = tokens_per_event
        self.info = EngineInfo(1 << 20, 1 << 20, tokens_per_event, ())

    async def generate(self, request: Request, on_event: Callable[[TokenEvent], None]) -> None:
        script, step = self._script, self._step
        for at in range(0, len(script), step):
            is_last = at + step >= len(script)
            finish = _finish(request, len(script)) if is_last else None
            on_event(TokenEvent(request.request_id, tuple(script[at : at + step]), finish))
            await asyncio.sleep(0)

    def is_healthy(self) -> bool:
        return True

    async def is_queued(self, request_id: str) -> bool:
        return False

    async def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot()


def _finish(request: Request, num_output: int) -> Finish:
    return Finish(
        reason=FinishReason.LENGTH,
        matched=None,
        num_prompt_tokens=len(request.prompt_ids),
        num_output_tokens=num_output,
        num_cached_tokens=0,
        speculation=SpeculationStats(),
        queue_seconds=0.0,
        prefill_seconds=0.0,
        decode_seconds=0.0,
    )


@contextmanager
def _listening(app: object) -> Iterator[str]:
    """Serve the app from a thread on a free local port; yield its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="warning", lifespan="off")  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + _START_S
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=_START_S)
