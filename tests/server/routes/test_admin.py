"""Health, metrics and control routes."""

import asyncio
import logging
import threading
from typing import Any

import httpx
import pytest

from engine import EngineSnapshot
from server.app import begin_draining
from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine, app_with, served, wait_until
from tests.support.server.responses import error_of


def test_a_running_engine_is_healthy_and_ready(connect: Connect) -> None:
    client = connect()
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}


def test_head_returns_the_headers_of_get_without_a_body(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "server.http.access_log")
    engine = FakeEngine()
    with served(app_with(engine)) as address, httpx.Client(base_url=address) as client:
        for path in ("/health", "/ready", "/v1/models", "/v1/models/tiny", "/docs"):
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.content) == (200, b"")
            for name in ("content-length", "content-type"):
                assert head.headers[name] == get.headers[name]
        assert "method=HEAD path=/v1/models " in caplog.text
        assert client.head("/v1/models/other").status_code == 404
        assert client.head("/generate").status_code == 405
        engine.die()
        assert client.head("/health").status_code == 503


def test_with_a_dead_engine_metrics_and_server_info_still_work(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine)
    engine.die()
    for route in ("/health", "/ready"):
        assert error_of(client.get(route), 503)["code"] == "engine_dead"
    assert "dspark:engine_up 0.0" in client.get("/metrics").text
    info = client.get("/server_info").json()
    assert (info["engine"]["is_healthy"], info["live"]) == (False, None)


def test_a_draining_server_is_alive_and_not_ready(connect: Connect) -> None:
    client = connect()
    begin_draining(client.app)  # type: ignore[arg-type]
    assert client.get("/health").status_code == 200
    assert error_of(client.get("/ready"), 503)["code"] == "draining"


@pytest.mark.parametrize(
    ("running", "waiting", "seconds", "status"),
    [(0, 0, 1e6, 200), (1, 0, 11.0, 503), (0, 1, 11.0, 503), (4, 4, 9.0, 200)],
)
def test_without_progress_on_its_requests_the_server_is_not_ready(
    connect: Connect, running: int, waiting: int, seconds: float, status: int
) -> None:
    engine = FakeEngine()
    engine.state = EngineSnapshot(
        num_running=running, num_waiting=waiting, seconds_since_progress=seconds
    )
    client = connect(engine, stall_s=10.0)
    assert client.get("/ready").status_code == status
    assert client.get("/health").status_code == 200


def test_a_hanging_engine_is_not_ready(connect: Connect) -> None:
    class Stuck(FakeEngine):
        async def snapshot(self) -> EngineSnapshot:
            await asyncio.sleep(60)
            raise AssertionError("the wait has no timeout")

    client = connect(Stuck(), stall_s=0.02)
    assert error_of(client.get("/ready"), 503)["code"] == "stalled"
    assert client.get("/metrics").status_code == 200


def test_server_info_has_configuration_engine_and_live_statistics(connect: Connect) -> None:
    engine = FakeEngine(max_len=100)
    engine.state = EngineSnapshot(
        num_rounds=10, num_draft_tokens=40, num_accepted_tokens=25, num_pages=8, num_used_pages=2
    )
    client = connect(engine, config={"kv": {"page_size": 16}})
    info = client.get("/server_info").json()
    assert info["served_model_name"] == "tiny"
    assert info["config"] == {"kv": {"page_size": 16}}
    assert info["engine"]["served_max_len"] == 100
    assert info["engine"]["details"] == {"device": "none"}
    assert info["context_kv"] == {
        "mode": "auto",
        "path": "per_layer",
        "reason": "layer 1 has a bias",
        "stacked_bytes": 0,
    }
    assert info["live"]["accept_length"] == 3.5
    assert info["live"]["accept_rate"] == 0.625
    assert info["live"]["num_used_pages"] == 2


def test_set_context_kv_switches_the_path_or_returns_the_reason(connect: Connect) -> None:
    client = connect()
    assert client.post("/set_context_kv", json={"mode": "off"}).json()["mode"] == "off"
    error = error_of(client.post("/set_context_kv", json={"mode": "on"}))
    assert error["param"] == "mode"
    assert error["message"] == "stacked cannot hold: layer 1 has a bias"
    error = error_of(client.post("/set_context_kv", json={"mode": "x"}))
    assert "'auto', 'on' or 'off'" in error["message"]


def test_flush_cache_returns_the_number_of_freed_pages(connect: Connect) -> None:
    assert connect().post("/flush_cache").json() == {"freed_pages": 5}


@pytest.mark.parametrize(
    ("body", "headers", "rid"),
    [
        ({"text": "hi", "rid": "mine"}, {}, "mine"),
        ({"text": "hi"}, {"x-request-id": "from-the-header"}, "from-the-header"),
        ({"text": ["a", "b"], "rid": "all"}, {}, "all"),
        ({"text": ["a", "b"], "rid": ["r0", "r1"]}, {"x-request-id": "h"}, "h"),
        ({"prompt": "hi"}, {"x-request-id": "h"}, "cmpl-h"),
    ],
)
def test_a_request_is_aborted_by_any_of_its_names(
    body: dict[str, Any], headers: dict[str, str], rid: str
) -> None:
    engine = FakeEngine(steps_before_pause=1)
    route = "/generate" if "text" in body else "/v1/completions"
    with served(app_with(engine)) as address:
        responses: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: responses.append(httpx.post(address + route, json=body, headers=headers))
        )
        thread.start()
        count = 2 if isinstance(body.get("text"), list) else 1
        wait_until(lambda: len(engine.running) == count)
        none = httpx.post(f"{address}/abort_request", json={"rid": "other"})
        assert none.json() == {"aborted": 0}
        done = httpx.post(f"{address}/abort_request", json={"rid": rid})
        assert done.json() == {"aborted": count}
        thread.join(timeout=30)
    assert responses[0].status_code == 200
    assert "abort" in responses[0].text
    assert engine.num_cancelled == 0  # it was aborted, not cancelled


def test_one_of_several_prompts_can_be_aborted() -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine)) as address, httpx.Client() as client:
        body = {"text": ["a", "b"], "rid": "all", "stream": True}
        with client.stream("POST", f"{address}/generate", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            httpx.post(f"{address}/abort_request", json={"rid": "all-1"})
            wait_until(lambda: len(engine.running) == 1)
            assert '"id":"all-1","finish_reason":{"type":"abort"' in next(
                line for line in lines if "abort" in line
            )


def test_abort_all_aborts_every_request(connect: Connect) -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine)) as address:
        threads = [
            threading.Thread(target=lambda: httpx.post(f"{address}/generate", json={"text": "a"}))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(engine.running) == 3)
        done = httpx.post(f"{address}/abort_request", json={"abort_all": True})
        assert done.json() == {"aborted": 3}
        for thread in threads:
            thread.join(timeout=30)
    assert not engine.running


def test_collapsed_acceptance_affects_ready_only_if_configured(connect: Connect) -> None:
    engine = FakeEngine()
    engine.state = EngineSnapshot(has_collapsed=True)
    assert connect(engine).get("/ready").status_code == 200
    strict = connect(engine, ready_when_collapsed=False)
    assert error_of(strict.get("/ready"), 503)["code"] == "acceptance_collapsed"
    assert strict.get("/health").status_code == 200
    assert "dspark:spec_decode_has_collapsed 1.0" in strict.get("/metrics").text
    engine.state = EngineSnapshot()
    assert strict.get("/ready").status_code == 200


def test_a_profile_is_recorded_from_start_to_stop(connect: Connect) -> None:
    client = connect(profile_dir="/somewhere")
    assert client.post("/start_profile").json() == {"folder": "/somewhere"}
    assert "stop it first" in error_of(client.post("/start_profile"))["message"]
    assert client.post("/stop_profile").json() == {"file": "/somewhere/profile.json"}
    assert "start one first" in error_of(client.post("/stop_profile"))["message"]


def test_profiling_needs_a_folder(connect: Connect) -> None:
    error = error_of(connect().post("/start_profile"))
    assert "observability.profile_dir" in error["message"]


@pytest.mark.parametrize("body", [{}, {"rid": "a", "abort_all": True}, {"abort_all": False}])
def test_abort_request_needs_exactly_one_target(connect: Connect, body: dict[str, Any]) -> None:
    assert "exactly one" in error_of(connect().post("/abort_request", json=body))["message"]
