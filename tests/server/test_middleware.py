"""The id, the key and the body's size of every request."""

import asyncio

import httpx
import pytest
from starlette.types import Message

from tests.server.conftest import Connect
from tests.server.fakes import FakeEngine, app_with, served
from tests.server.test_bad_input import error_of


def test_a_request_id_is_sent_back(connect: Connect) -> None:
    client = connect()
    headers = {"x-request-id": "abc-1"}
    for stream in (False, True):
        body = {"text": "hi", "stream": stream}
        response = client.post("/generate", json=body, headers=headers)
        assert response.headers["x-request-id"] == "abc-1"
        assert '"id":"abc-1"' in response.text
    assert client.get("/nothing", headers=headers).headers["x-request-id"] == "abc-1"
    chat = client.post("/v1/completions", json={"prompt": "a"}, headers=headers).json()
    assert chat["id"] == "cmpl-abc-1"


@pytest.mark.parametrize("given", ["", "with space", "x" * 129, "caf\u00e9"])
def test_an_id_that_cannot_be_used_is_replaced(connect: Connect, given: str) -> None:
    headers = {b"x-request-id": given.encode("latin-1")}
    response = connect().get("/health", headers=headers)  # type: ignore[arg-type]
    assert len(response.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    "route", ["/ready", "/metrics", "/server_info", "/v1/models", "/docs", "/openapi.json", "/nope"]
)
def test_every_route_but_health_asks_for_the_key(connect: Connect, route: str) -> None:
    client = connect(api_key="right")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}):
        response = client.get(route, headers=headers)
        error = error_of(response, 401)
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
        assert "right" not in response.text
    allowed = client.get(route, headers={"authorization": "Bearer right"})
    assert allowed.status_code == (404 if route == "/nope" else 200)


def test_health_is_open_and_generating_is_not(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine, api_key="right")
    assert client.get("/health").status_code == 200
    error_of(client.post("/generate", json={"text": "hi"}), 401)
    assert engine.requests == []


def test_without_a_key_nobody_is_asked(connect: Connect) -> None:
    assert connect().get("/v1/models").status_code == 200


def test_a_body_over_the_limit_is_refused_with_the_numbers(connect: Connect) -> None:
    client = connect(max_body_bytes=100)
    error = error_of(client.post("/generate", json={"text": "a" * 100}), 413)
    assert error["code"] == "body_too_large"
    assert "at most 100 bytes" in error["message"]
    assert client.post("/generate", json={"text": "a" * 50}).status_code == 200


def test_a_body_that_does_not_announce_its_size_is_refused_all_the_same() -> None:
    chunks = (b" " * 1024 for _ in range(64))
    with served(app_with(FakeEngine(), max_body_bytes=4096)) as address:
        headers = {"content-type": "application/json"}
        response = httpx.post(f"{address}/generate", content=chunks, headers=headers)
        error = error_of(response, 413)
        assert error["code"] == "body_too_large"
        assert "at most 4096 bytes" in error["message"]
        assert httpx.post(f"{address}/generate", json={"text": "hi"}).status_code == 200


def test_the_pieces_of_a_body_are_counted_together() -> None:
    pieces = [b'{"text": "', b"a" * 60, b"a" * 60]
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/generate",
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }
    asyncio.run(app_with(FakeEngine(), max_body_bytes=100)(scope, receive, send))
    assert sent[0]["status"] == 413


def test_requests_are_counted_by_how_they_ended(connect: Connect) -> None:
    client = connect(api_key="right")
    headers = {"authorization": "Bearer right"}
    client.post("/generate", json={"text": "hi"}, headers=headers)
    client.post("/generate", json={"text": "hi", "stream": True}, headers=headers)
    client.post("/v1/completions", json={"prompt": ""}, headers=headers)
    client.post("/generate", json={"text": "hi"})
    client.get("/v1/models", headers=headers)
    text = client.get("/metrics", headers=headers).text
    assert 'dspark:requests_total{outcome="ok"} 2.0' in text
    assert 'dspark:requests_total{outcome="client_error"} 2.0' in text
    assert 'dspark:requests_total{outcome="server_error"} 0.0' in text
