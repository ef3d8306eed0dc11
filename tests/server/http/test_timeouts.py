"""Time limits end a request with a 504 and free its resources."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.http.timeouts import TimeLimits
from tests.support.server.clients import ROUTES, has_counted
from tests.support.server.fakes import FakeEngine, app_with, served, wait_until
from tests.support.server.responses import error_of
from tests.support.server.tiny_service import tiny_service


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_a_request_in_the_queue_beyond_the_limit_gets_504(route: str, stream: bool) -> None:
    engine = FakeEngine(steps_before_pause=0, stays_queued=True)
    with served(app_with(engine, limits=TimeLimits(queue_s=0.05))) as address:
        response = httpx.post(address + route, json={**ROUTES[route], "stream": stream})
        error = error_of(response, 504)
        assert (error["type"], error["code"]) == ("timeout_error", "queue_timeout")
        assert "0.05 s" in error["message"]
        assert (engine.num_cancelled, engine.running) == (1, set())
        wait_until(lambda: has_counted(address, "timeout"))


def test_the_queue_limit_does_not_apply_to_a_running_request() -> None:
    engine = FakeEngine("hello", steps_before_pause=0)
    limits = TimeLimits(queue_s=0.01, request_s=0.1)
    with served(app_with(engine, limits=limits)) as address:
        error = error_of(httpx.post(f"{address}/generate", json={"text": "hi"}), 504)
        assert error["code"] == "request_timeout"
        assert engine.num_cancelled == 1


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_beyond_the_time_limit_is_cancelled(route: str) -> None:
    engine = FakeEngine(steps_before_pause=2)
    with served(app_with(engine, limits=TimeLimits(request_s=0.05))) as address:
        error = error_of(httpx.post(address + route, json=ROUTES[route]), 504)
        assert error["code"] == "request_timeout"
        assert (engine.num_cancelled, engine.running) == (1, set())


def test_a_stream_beyond_the_time_limit_ends_with_the_error() -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine, limits=TimeLimits(request_s=0.05))) as address:
        text = httpx.post(f"{address}/generate", json={"text": "hi", "stream": True}).text
        assert '"text":"hel"' in text
        assert '"code":"request_timeout"' in text.splitlines()[-2]
        assert "[DONE]" not in text
        assert engine.num_cancelled == 1


def test_requests_within_the_limits_succeed() -> None:
    limits = TimeLimits(queue_s=30, request_s=30)
    with served(app_with(FakeEngine("hello"), limits=limits)) as address:
        assert httpx.post(f"{address}/generate", json={"text": "hi"}).json()["text"] == "hello"


def test_a_real_engine_frees_the_pages_of_timed_out_requests(tmp_path: Path) -> None:
    """With one slot, one request exceeds its time and the others stay in the queue."""
    limits = TimeLimits(queue_s=0.01, request_s=0.03)
    with tiny_service(tmp_path, engine={"max_running_requests": 1}, limits=limits) as service:
        body: dict[str, Any] = {"text": "long", "sampling_params": {"max_new_tokens": 150}}

        def code_of(_: int) -> str:
            response = httpx.post(f"{service.url}/generate", json=body, timeout=30)
            return str(error_of(response, 504)["code"])

        with ThreadPoolExecutor(4) as pool:
            codes = set(pool.map(code_of, range(4)))
        assert codes <= {"queue_timeout", "request_timeout"}
        service.wait_until_idle()
