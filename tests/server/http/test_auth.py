"""API keys of callers and admins."""

import asyncio

import pytest
from starlette.types import ASGIApp, Message

from server.http.auth import KeyRing
from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine, app_with
from tests.support.server.responses import error_of

BOTH = KeyRing(callers=("right", "also right"), admins=("admin",))
STEERING = {
    "/start_profile": None,
    "/flush_cache": None,
    "/set_context_kv": {"mode": "off"},
    "/abort_request": {"abort_all": True},
}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "route", ["/ready", "/metrics", "/server_info", "/v1/models", "/docs", "/openapi.json", "/nope"]
)
def test_every_route_but_health_needs_a_key(connect: Connect, route: str) -> None:
    client = connect(keys=BOTH)
    for headers in ({}, bearer("wrong"), {"authorization": "right"}, bearer(""), bearer("caf\xe9")):
        sent = {name: value.encode("latin-1") for name, value in headers.items()}
        response = client.get(route, headers=sent)  # type: ignore[arg-type]
        error = error_of(response, 401)
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
        assert "right" not in response.text
    for key in ("right", "also right", "admin"):
        for allowed in (bearer(key), {"x-api-key": key}):
            status = client.get(route, headers=allowed).status_code
            assert status == (404 if route == "/nope" else 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**bearer("wrong"), "x-api-key": "right"}, 200),
        ({**bearer("right"), "x-api-key": "wrong"}, 200),
        ({"authorization": "Basic abc", "x-api-key": "right"}, 200),
        ({**bearer("wrong"), "x-api-key": "wrong"}, 401),
    ],
)
def test_one_right_key_is_enough_where_both_headers_are_sent(
    connect: Connect, headers: dict[str, str], status: int
) -> None:
    assert connect(keys=BOTH).get("/v1/models", headers=headers).status_code == status


def test_health_is_open_and_generate_is_not(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine, keys=BOTH)
    assert client.get("/health").status_code == 200
    error_of(client.post("/generate", json={"text": "hi"}), 401)
    assert engine.requests == []


def test_without_keys_every_route_is_open(connect: Connect) -> None:
    client = connect()
    assert client.get("/v1/models").status_code == 200
    assert client.post("/flush_cache").status_code == 200


@pytest.mark.parametrize("route", STEERING)
def test_admin_routes_need_an_admin_key_if_there_is_one(connect: Connect, route: str) -> None:
    client = connect(keys=BOTH, profile_dir="/x")
    body = STEERING[route]
    error_of(client.post(route, json=body), 401)
    error = error_of(client.post(route, json=body, headers=bearer("right")), 403)
    assert (error["type"], error["code"]) == ("permission_error", "admin_key_required")
    assert client.post(route, json=body, headers=bearer("admin")).status_code == 200


@pytest.mark.parametrize("route", ["/start_profile", "/flush_cache", "/set_context_kv"])
@pytest.mark.parametrize("content", [b"{bad", b"[1]", b'{"mode": 5}'])
def test_the_key_of_an_admin_route_is_checked_before_the_body(
    connect: Connect, route: str, content: bytes
) -> None:
    client = connect(keys=BOTH, profile_dir="/x")
    json = {"content-type": "application/json"}
    error_of(client.post(route, content=content, headers=json), 401)
    error_of(client.post(route, content=content, headers={**json, **bearer("right")}), 403)


async def status_and_reads(app: ASGIApp, path: str, body: bytes) -> tuple[int, int]:
    """Send a request without a key; return its status and how often its body was read."""
    num_reads, statuses = 0, []

    async def receive() -> Message:
        nonlocal num_reads
        num_reads += 1
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await app({**scope, "query_string": b""}, receive, send)
    return statuses[0], num_reads


@pytest.mark.parametrize("size", [2, 8 << 20, 9 << 20])
def test_without_a_key_no_route_reads_the_body(size: int) -> None:
    app = app_with(FakeEngine(), keys=BOTH, playground=False)
    paths = {*app.openapi()["paths"], "/openapi.json", "/docs", "/nope"} - {"/health"}
    assert {"/abort_request", "/generate", "/v1/messages"} <= paths
    for path in paths:
        sent = asyncio.run(status_and_reads(app, path, b" " * size))
        assert (path, *sent) == (path, 401, 0)


@pytest.mark.parametrize("route", STEERING)
def test_with_only_admin_keys_no_long_body_is_read(route: str) -> None:
    app = app_with(FakeEngine(), keys=KeyRing(admins=("admin",)), profile_dir="/x")
    status, num_reads = asyncio.run(status_and_reads(app, route, b" " * 5000))
    assert (status, num_reads) == (413 if route == "/abort_request" else 401, 0)


def test_the_longest_name_of_a_request_can_be_aborted(connect: Connect) -> None:
    content = b'{"rid": "' + rb"\ud83d\ude00" * 128 + b'"}'
    json = {"content-type": "application/json"}
    done = connect().post("/abort_request", content=content, headers=json)
    assert done.json() == {"aborted": 0}


@pytest.mark.parametrize("route", STEERING)
def test_without_admin_keys_admin_routes_accept_a_callers_key(connect: Connect, route: str) -> None:
    client = connect(keys=KeyRing(callers=("right",)), profile_dir="/x")
    assert client.post(route, json=STEERING[route], headers=bearer("right")).status_code == 200


@pytest.mark.parametrize("route", STEERING)
def test_with_only_admin_keys_generate_is_open(connect: Connect, route: str) -> None:
    client = connect(keys=KeyRing(admins=("admin",)))
    assert client.post("/generate", json={"text": "hi"}).status_code == 200
    error_of(client.post(route, json=STEERING[route]), 401)
    error_of(client.post(route, json=STEERING[route], headers=bearer("guess")), 401)


def test_a_caller_may_abort_requests_by_name(connect: Connect) -> None:
    client = connect(keys=BOTH)
    done = client.post("/abort_request", json={"rid": "x"}, headers=bearer("right"))
    assert done.json() == {"aborted": 0}


def test_the_repr_of_a_key_ring_has_no_keys() -> None:
    assert "right" not in repr(BOTH)
    assert "admin'" not in repr(BOTH)
