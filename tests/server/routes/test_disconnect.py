"""Disconnects cancel requests; with a real web server."""

import threading

import httpx
import pytest

from engine import EngineBusy
from tests.support.server.clients import ROUTES, connection_to, has_counted, pending_request
from tests.support.server.fakes import FakeEngine, app_with, served, wait_until


@pytest.mark.parametrize("route", ROUTES)
def test_a_disconnect_during_a_stream_cancels_it(route: str) -> None:
    engine = FakeEngine(steps_before_pause=2)
    with served(app_with(engine)) as address:
        body = {**ROUTES[route], "stream": True}
        with httpx.Client() as client, client.stream("POST", address + route, json=body) as stream:
            pieces = stream.iter_text()
            assert next(pieces)
            assert len(engine.running) == 1
        wait_until(lambda: not engine.running)
        assert engine.num_cancelled == 1
        wait_until(lambda: has_counted(address, "cancelled"))


@pytest.mark.parametrize("steps", [0, 1], ids=["before", "after"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_a_disconnect_before_the_response_cancels_the_request(
    route: str, stream: bool, steps: int
) -> None:
    engine = FakeEngine(steps_before_pause=steps)
    with served(app_with(engine)) as address:
        with pending_request(address, route, {**ROUTES[route], "stream": stream}):
            wait_until(lambda: len(engine.running) == 1)
        wait_until(lambda: engine.num_cancelled == 1)
        assert not engine.running
        wait_until(lambda: has_counted(address, "cancelled"))


def test_a_disconnect_cancels_every_prompt_of_a_list() -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine)) as address:
        with pending_request(address, "/generate", {"text": ["a", "b", "c"]}):
            wait_until(lambda: len(engine.running) == 3)
        wait_until(lambda: engine.num_cancelled == 3)
        assert not engine.running


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_one_prompt_cancels_the_others(stream: bool) -> None:
    engine = FakeEngine(
        refusal=EngineBusy("the queue of 2 is full"),
        refuses=lambda request: request.prompt_ids[-1] == ord("c"),
        steps_before_pause=0,
    )
    with served(app_with(engine)) as address:
        body = {"prompt": ["a", "b", "c", "d"], "stream": stream}
        response = httpx.post(f"{address}/v1/completions", json=body)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"
        assert not engine.running
        assert engine.num_cancelled == len(engine.requests) - 1


def test_a_finished_request_is_not_cancelled() -> None:
    engine = FakeEngine()
    with served(app_with(engine)) as address:
        for body in ({"text": "hi"}, {"text": "hi", "stream": True}):
            assert httpx.post(f"{address}/generate", json=body).status_code == 200
    assert engine.num_cancelled == 0
    assert not engine.running


def test_a_disconnect_inside_a_body_does_not_affect_others() -> None:
    engine = FakeEngine()
    with served(app_with(engine)) as address:
        with connection_to(address) as connection:
            connection.sendall(
                b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
        assert httpx.post(f"{address}/generate", json={"text": "hi"}).status_code == 200


def test_an_idle_stream_gets_keep_alive_comments() -> None:
    engine = FakeEngine("hello", steps_before_pause=0)
    with served(app_with(engine, keepalive_s=0.02)) as address, httpx.Client() as client:
        body = {"text": "hi", "stream": True, "rid": "slow"}
        with client.stream("POST", f"{address}/generate", json=body) as stream:
            lines = stream.iter_lines()
            assert [next(lines) for _ in range(4)] == [": keepalive", "", ": keepalive", ""]
            assert httpx.post(f"{address}/abort_request", json={"rid": "slow"}).is_success
            rest = [line for line in lines if line and not line.startswith(":")]
        assert '"type":"abort"' in rest[0]
        assert rest[1:] == ["data: [DONE]"]


def test_a_failed_stream_ends_with_the_error_and_without_done() -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine)) as address, httpx.Client() as client:
        body = {"text": "hi", "stream": True}
        with client.stream("POST", f"{address}/generate", json=body) as stream:
            lines = stream.iter_lines()
            assert '"text":"hel"' in next(lines)
            engine.die()
            last = [line for line in lines if line]
        assert len(last) == 1
        assert '"code":"engine_dead"' in last[0]
        assert httpx.get(f"{address}/health").status_code == 503
        wait_until(lambda: has_counted(address, "server_error"))


def test_every_waiting_request_fails_when_the_engine_dies() -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine)) as address, httpx.Client() as client:
        wait = {"text": ["a", "b"]}
        responses: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: responses.append(client.post(f"{address}/generate", json=wait))
        )
        thread.start()
        wait_until(lambda: len(engine.running) == 2)
        engine.die()
        thread.join(timeout=30)
        assert responses[0].status_code == 503
        assert responses[0].json()["error"]["code"] == "engine_dead"
        assert httpx.post(f"{address}/generate", json=wait).status_code == 503
