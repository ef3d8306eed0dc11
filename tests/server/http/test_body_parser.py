"""Large bodies are parsed in a process, so that other requests do not wait for them."""

import asyncio
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from pydantic import BaseModel

from server.http.body_parser import BodyParser
from server.protocol.native import GenerateBody
from server.protocol.openai import ChatBody
from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine, app_with, served, wait_until
from tests.support.server.responses import error_of

JSON = {"content-type": "application/json"}
USER = {"role": "user", "content": "hi"}
MEGABYTE = 2**20


def bodies(size: int) -> dict[str, tuple[str, bytes, int]]:
    """Return (route, content, status) of bodies with about `size` bytes, by name."""

    def stops(item: object) -> dict[str, object]:
        count = size // (len(json.dumps(item)) + 2)
        return {"text": "a", "sampling_params": {"stop": [item] * count}}

    keys = {f"key{i}": i for i in range(size // 24)}
    cases: dict[str, tuple[str, object, int]] = {
        "wrong stops": ("/generate", stops(1), 400),
        "long stops": ("/generate", stops("a" * 40), 400),
        "a long name": ("/generate", {"a" * (size - 20): 1}, 400),
        "many fields": ("/v1/chat/completions", keys, 400),
        "ignored values": (
            "/v1/chat/completions",
            {"messages": [USER], "metadata": list(range(size // 10))},
            200,
        ),
        "ignored fields": ("/v1/chat/completions", {"messages": [USER], "metadata": keys}, 200),
    }
    return {
        name: (route, json.dumps(body).encode(), status)
        for name, (route, body, status) in cases.items()
    }


def longest_pause(address: str, work: Callable[[], None]) -> float:
    """Return the longest time between two lines of a stream that sends one every 50 ms."""
    pause, is_over = 0.0, threading.Event()
    has_begun = threading.Event()

    def read() -> None:
        nonlocal pause
        body = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 77}}
        with httpx.stream("POST", f"{address}/generate", json=body, timeout=30) as stream:
            last = None
            for _ in stream.iter_lines():
                now = time.monotonic()
                pause = max(pause, now - (last or now))
                last = now
                has_begun.set()
                if is_over.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    assert has_begun.wait(10)
    try:
        work()
    finally:
        is_over.set()
        reader.join()
    return pause


def test_a_stream_goes_on_while_large_bodies_are_refused_and_served() -> None:
    cases = bodies(8 * MEGABYTE - 4096)
    engine = FakeEngine(
        steps_before_pause=1, pauses=lambda request: request.params.max_new_tokens == 77
    )
    with served(app_with(engine, keepalive_s=0.05, log_requests=False)) as address:

        def send() -> None:
            for name, (route, content, status) in cases.items():
                response = httpx.post(address + route, content=content, headers=JSON, timeout=30)
                assert response.status_code == status, (name, response.text)

        send()  # starts the process
        pauses = [longest_pause(address, send) for _ in range(2)]
        assert min(pauses) < 0.3, pauses


def parsed(parser: BodyParser, body: object, model: type[BaseModel]) -> BaseModel:
    return asyncio.run(parser.parse(json.dumps(body).encode(), model))


def test_a_large_body_gives_the_same_model_as_a_small_one() -> None:
    parser = BodyParser()
    body = {"messages": [USER, {"role": "assistant", "content": "a"}], "stop": ["x"], "n": 2}
    small = parsed(parser, body, ChatBody)
    assert parsed(parser, {**body, "metadata": "a" * MEGABYTE}, ChatBody) == small


def test_a_large_body_gets_the_same_refusal_as_a_small_one(connect: Connect) -> None:
    client = connect()
    for extra in ("", "a" * MEGABYTE):
        body = {"messages": [{"role": "user", "content": 5}], "user": extra}
        error = error_of(client.post("/v1/chat/completions", json=body))
        assert error["param"] == "messages.0.content"
        assert error["message"].endswith("must be a string or a list of text parts; found 5")


def test_a_process_that_has_ended_is_replaced() -> None:
    parser, body = BodyParser(), {"text": "a" * MEGABYTE}
    first = parsed(parser, body, GenerateBody)
    for child in children():
        os.kill(child, signal.SIGKILL)
    assert parsed(parser, body, GenerateBody) == first


def test_the_process_ends_with_its_parser() -> None:
    parser = BodyParser()
    before = children()
    parsed(parser, {"text": "a" * MEGABYTE}, GenerateBody)
    started = children() - before
    assert len(started) == 1
    del parser
    gc.collect()
    wait_until(lambda: not started & children())


def children() -> set[int]:
    """Return the processes that this one has started and that run."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in files for pid in file.read_text().split()}
