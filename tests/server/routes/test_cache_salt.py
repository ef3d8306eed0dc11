"""cache_salt separates requests in the prefix cache, and API keys separate their owners."""

from typing import Any

import pytest

from server.http.auth import KeyRing
from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine, app_with

ROUTES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "hi"}],
    },
}


def test_these_are_all_routes_that_generate() -> None:
    document = app_with(FakeEngine()).openapi()
    bodies = {
        path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for path, methods in document["paths"].items()
        if "requestBody" in methods.get("post", {})
    }
    schemas = document["components"]["schemas"]
    fields = {path: schemas[ref.rsplit("/", 1)[1]]["properties"] for path, ref in bodies.items()}
    assert {path for path, names in fields.items() if "stream" in names} == ROUTES.keys()
    assert {path for path, names in fields.items() if "cache_salt" in names} == ROUTES.keys()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_salt_reaches_the_engine(connect: Connect, path: str, stream: bool) -> None:
    engine = FakeEngine()
    client = connect(engine)
    for extra in ({}, {"cache_salt": "mine"}):
        body = {**ROUTES[path], **extra, "stream": stream}
        assert client.post(path, json=body).status_code == 200
    assert [request.cache_salt for request in engine.requests] == ["", "mine"]


def test_all_prompts_and_choices_have_the_salt(connect: Connect) -> None:
    engine = FakeEngine()
    body = {"text": ["a", "b"], "sampling_params": {"n": 2}, "cache_salt": "mine"}
    assert connect(engine).post("/generate", json=body).status_code == 200
    assert [request.cache_salt for request in engine.requests] == ["mine"] * 4


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("salt", ["", "x" * 129, 7, ["a"]])
def test_another_salt_is_refused_by_name(connect: Connect, path: str, salt: object) -> None:
    response = connect().post(path, json={**ROUTES[path], "cache_salt": salt})
    assert response.status_code == 400
    assert "cache_salt" in response.text


@pytest.mark.parametrize("path", ROUTES)
def test_requests_of_one_key_have_one_owner(connect: Connect, path: str) -> None:
    engine = FakeEngine()
    client = connect(engine, keys=KeyRing(callers=("a", "b")))
    for key in ("a", "b", "a"):
        headers = {"authorization": f"Bearer {key}"}
        assert client.post(path, json=ROUTES[path], headers=headers).status_code == 200
    first, other, again = (request.owner for request in engine.requests)
    assert first == again != other
    assert first != "a"


def test_without_keys_requests_have_no_owner(connect: Connect) -> None:
    engine = FakeEngine()
    connect(engine).post("/generate", json=ROUTES["/generate"])
    assert engine.requests[0].owner == ""
