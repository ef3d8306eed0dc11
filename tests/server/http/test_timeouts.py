"""A request that waits or takes too long is ended with a 504, and leaves nothing behind."""

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
def test_who_waits_too_long_in_the_queue_is_sent_away(route: str, stream: bool) -> None:
    engine = FakeEngine(steps_before_pause=0, leaves_queued=True)
    with served(app_with(engine, limits=TimeLimits(queue_s=0.05))) as address:
        response = httpx.post(address + route, json={**ROUTES[route], "stream": stream})
        error = error_of(response, 504)
        assert (error["type"], error["code"]) == ("timeout_error", "queue_timeout")
        assert "0.05 s" in error["message"]
        assert (engine.num_cancelled, engine.running) == (1, set())
        wait_until(lambda: has_counted(address, "timeout"))


def test_who_has_begun_is_not_sent_away_for_waiting() -> None:
    engine = FakeEngine("hello", steps_before_pause=0)
    limits = TimeLimits(queue_s=0.01, request_s=0.1)
    with served(app_with(engine, limits=limits)) as address:
        error = error_of(httpx.post(f"{address}/generate", json={"text": "hi"}), 504)
        assert error["code"] == "request_timeout"
        assert engine.num_cancelled == 1


@pytest.mark.parametrize("route", ROUTES)
def test_an_answer_that_takes_too_long_is_cancelled(route: str) -> None:
    engine = FakeEngine(steps_before_pause=2)
    with served(app_with(engine, limits=TimeLimits(request_s=0.05))) as address:
        error = error_of(httpx.post(address + route, json=ROUTES[route]), 504)
        assert error["code"] == "request_timeout"
        assert (engine.num_cancelled, engine.running) == (1, set())


def test_a_stream_that_takes_too_long_ends_with_the_error() -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine, limits=TimeLimits(request_s=0.05))) as address:
        text = httpx.post(f"{address}/generate", json={"text": "hi", "stream": True}).text
        assert '"text":"hel"' in text
        assert '"code":"request_timeout"' in text.splitlines()[-2]
        assert "[DONE]" not in text
        assert engine.num_cancelled == 1


def test_within_the_limits_nothing_changes() -> None:
    limits = TimeLimits(queue_s=30, request_s=30)
    with served(app_with(FakeEngine("hello"), limits=limits)) as address:
        assert httpx.post(f"{address}/generate", json={"text": "hi"}).json()["text"] == "hello"


def test_a_real_engine_gets_its_pages_back_from_those_who_were_late(tmp_path: Path) -> None:
    """One slot: a request runs past its time, and others never begin."""
    limits = TimeLimits(queue_s=0.01, request_s=0.03)
    with tiny_service(tmp_path, engine={"max_running_requests": 1}, limits=limits) as service:
        body: dict[str, Any] = {"text": "long", "sampling_params": {"max_new_tokens": 150}}

        def ask(_: int) -> str:
            response = httpx.post(f"{service.url}/generate", json=body, timeout=30)
            return str(error_of(response, 504)["code"])

        with ThreadPoolExecutor(4) as pool:
            codes = set(pool.map(ask, range(4)))
        assert codes <= {"queue_timeout", "request_timeout"}
        service.wait_until_idle()
