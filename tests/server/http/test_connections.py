"""Limits on connections: time for heads and bodies, number of connections; which parser runs."""

import asyncio
import json
import logging
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from server.http.connections import ConnectionLimits, max_connections
from tests.support.paths import ROOT
from tests.support.server.clients import connection_to
from tests.support.server.fakes import FakeEngine, app_with, served, wait_until

SHORT = ConnectionLimits(header_s=0.3, body_s=0.3)
HEAD = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"text": "hi"}'


@pytest.fixture(scope="module", params=["h11 alone", "httptools too"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server, where uvicorn would choose each of its parsers if it might choose."""
    with pytest.MonkeyPatch.context() as patch:
        is_there = request.param == "httptools too"
        patch.setitem(sys.modules, "httptools", ModuleType("httptools") if is_there else None)
        patch.delitem(sys.modules, "uvicorn.protocols.http.auto", raising=False)
        with served(app_with(FakeEngine("hello")), limits=SHORT) as url:
            yield url


def received(connection: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    connection.settimeout(10)
    content = b""
    while piece := connection.recv(65536):
        content += piece
    return content


def responses(address: str, request: bytes) -> bytes:
    with connection_to(address) as connection:
        connection.sendall(request)
        return received(connection)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"POST /gen", b"HTTP/1.1 408 "),
        (HEAD, b"HTTP/1.1 408 "),
        (HEAD + b"Content-Length: 100\r\n\r\n", b"HTTP/1.1 408 "),
        (HEAD + b"Content-Length: 100\r\n\r\n" + BODY, b"HTTP/1.1 408 "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", b"HTTP/1.1 408 "),
    ],
)
def test_an_incomplete_request_ends_at_its_time_limit(
    address: str, sent: bytes, status: bytes
) -> None:
    started = time.monotonic()
    assert responses(address, sent)[: len(status)] == status
    assert 0.2 < time.monotonic() - started < 5


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nA: ", HEAD + b"Content-Length: 1000\r\n\r\n"])
def test_a_request_that_trickles_in_ends_at_its_time_limit(address: str, sent: bytes) -> None:
    with connection_to(address) as connection:
        connection.sendall(sent)
        started = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - started < 5:
                connection.sendall(b" ")
                time.sleep(0.02)
        assert 0.2 < time.monotonic() - started < 3


def test_a_second_head_on_a_connection_has_a_time_limit(address: str) -> None:
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    content = responses(address, request + b"POST /gen")
    assert content.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in content


def test_an_idle_connection_and_a_long_response_outlast_the_limits(address: str) -> None:
    with httpx.Client(base_url=address) as client:
        assert client.get("/health").status_code == 200
        time.sleep(0.6)
        assert client.get("/health").status_code == 200
    engine = FakeEngine("hello", steps_before_pause=1)
    with served(app_with(engine, keepalive_s=0.2), limits=SHORT) as url:
        with httpx.stream("POST", f"{url}/generate", json={"text": "a", "stream": True}) as stream:
            lines = stream.iter_lines()
            started = time.monotonic()
            while time.monotonic() - started < 0.8:
                next(lines)
        assert engine.num_cancelled <= 1


def test_a_request_with_upgrade_h2c_is_served_as_a_plain_one(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = HEAD + b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"
    head += b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    content = responses(address, head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert content.startswith(b"HTTP/1.1 200 ")
    assert json.loads(content.partition(b"\r\n\r\n")[2])["text"] == "hello"
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_websocket_upgrade_is_no_websocket(address: str) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
    head += b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n\r\n"
    assert responses(address, head).startswith(b"HTTP/1.1 200 ")


def test_a_stream_over_http_1_0_has_no_chunks(address: str) -> None:
    body = b'{"text": "hi", "stream": true}'
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: %d\r\n\r\n" % len(body)
    content = responses(address, head + body)
    assert content.startswith(b"HTTP/1.1 200 ")
    fields, _, events = content.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in fields.lower()
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://x/health", b"200"),
        (b"HTTPS://x.example:8000/health?a=1", b"200"),
        (b"http://x/nothing", b"404"),
        (b"http://x", b"200"),
    ],
)
def test_an_absolute_target_is_served(address: str, target: bytes, status: bytes) -> None:
    request = b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert responses(address, request).startswith(b"HTTP/1.1 " + status)


def test_more_connections_than_descriptors_wait_and_log_one_line(tmp_path: Path) -> None:
    """With 160 descriptors and 200 idle connections, requests are served once others end."""
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.server.small_descriptors"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
        )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        address = server.stdout.readline().strip()
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(connection_to(address))
            wait_until(lambda: "accepting is paused" in log.read_text())
            time.sleep(0.3)
            lines = log.read_text().splitlines()
            assert len(lines) == 1, lines[:3]
        response = httpx.post(f"{address}/generate", json={"text": "a"}, timeout=30)
        assert response.status_code == 200
        assert len(log.read_text().splitlines()) == 1
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        server.stdin.close()


def test_the_limit_on_connections_follows_the_descriptors() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert max(1, soft - 1000) <= max_connections() < soft


def test_a_client_that_does_not_read_pauses_its_stream() -> None:
    app, num_chunks, has_ended = FastAPI(), 0, False

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal num_chunks, has_ended
        try:
            while True:
                num_chunks += 1
                yield b"a" * 65536
                await asyncio.sleep(0)  # sends to a closed connection do not wait
        finally:
            has_ended = True

    app.add_api_route("/endless", lambda: StreamingResponse(chunks()))
    with served(app) as url:
        with connection_to(url) as connection:
            connection.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: num_chunks > 0)
            time.sleep(0.3)
            first = num_chunks
            time.sleep(0.3)
            assert num_chunks == first, "the server buffers what the client does not read"
            assert num_chunks < 400  # 25 MB, nearly all in the system's buffers
        wait_until(lambda: has_ended)
