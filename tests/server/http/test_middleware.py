"""Middleware: request ids, body limit, CORS, request counts."""

import asyncio

import httpx
import pytest
from starlette.types import Message

from server.http.auth import KeyRing
from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine, app_with, served
from tests.support.server.responses import error_of


def test_a_request_id_is_returned(connect: Connect) -> None:
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
def test_an_invalid_request_id_is_replaced(connect: Connect, given: str) -> None:
    headers = {b"x-request-id": given.encode("latin-1")}
    response = connect().get("/health", headers=headers)  # type: ignore[arg-type]
    assert len(response.headers["x-request-id"]) == 32


def test_a_body_over_the_limit_is_refused_with_the_limit(connect: Connect) -> None:
    client = connect(max_body_bytes=100)
    error = error_of(client.post("/generate", json={"text": "a" * 100}), 413)
    assert error["code"] == "body_too_large"
    assert "at most 100 bytes" in error["message"]
    assert client.post("/generate", json={"text": "a" * 50}).status_code == 200


def test_a_chunked_body_over_the_limit_is_refused() -> None:
    chunks = (b" " * 1024 for _ in range(64))
    with served(app_with(FakeEngine(), max_body_bytes=4096)) as address:
        headers = {"content-type": "application/json"}
        response = httpx.post(f"{address}/generate", content=chunks, headers=headers)
        error = error_of(response, 413)
        assert error["code"] == "body_too_large"
        assert "at most 4096 bytes" in error["message"]
        assert httpx.post(f"{address}/generate", json={"text": "hi"}).status_code == 200


def test_the_chunks_of_a_body_are_counted_together() -> None:
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


def test_requests_are_counted_by_outcome(connect: Connect) -> None:
    client = connect(keys=KeyRing(callers=("right",)))
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


def test_only_configured_origins_get_cors_headers(connect: Connect) -> None:
    client = connect(cors_origins=("https://chat.example.org",), keys=KeyRing(callers=("right",)))
    ours, other = {"origin": "https://chat.example.org"}, {"origin": "https://other.example.org"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    before = client.options("/v1/chat/completions", headers={**ours, **asked})
    assert before.status_code == 200  # a browser asks first, and without the key
    assert before.headers["access-control-allow-origin"] == "https://chat.example.org"
    refused = client.get("/v1/models", headers=ours)
    assert refused.status_code == 401  # which the page may read, to say so
    assert refused.headers["access-control-allow-origin"] == "https://chat.example.org"
    assert "x-request-id" in refused.headers["access-control-expose-headers"].lower()
    stranger = client.get("/v1/models", headers={**other, "authorization": "Bearer right"})
    assert "access-control-allow-origin" not in stranger.headers


def test_without_configured_origins_there_are_no_cors_headers(connect: Connect) -> None:
    response = connect().get("/health", headers={"origin": "https://chat.example.org"})
    assert "access-control-allow-origin" not in response.headers
