"""The gateway reads no body of a request without a right key."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Scope

from server.settings.schema import Settings

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # Ray's


class Replicas:
    """Takes the place of the handle: notes the bodies, and refuses every request."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.remote = self.stream

    def options(self, **_: Any) -> "Replicas":
        return self

    def stream(self, route: object, scope: Scope, body: bytes) -> Any:
        self.bodies.append(body)
        return self._refusal()

    async def _refusal(self) -> Any:
        head = {"type": "http.response.start", "status": 401, "headers": []}
        yield "a", [head, {"type": "http.response.body", "body": b""}]

    def broadcast(self, name: str, scope: Scope, body: bytes) -> Any:
        self.bodies.append(body)
        return SimpleNamespace(results_async=self._no_answers)

    async def _no_answers(self, **_: Any) -> list[object]:
        return []


@pytest.mark.parametrize("path", ["/generate", "/abort_request", "/v1/messages"])
@pytest.mark.parametrize(
    ("key", "is_read"), [(None, False), (b"wrong", False), (b"right", True), (b"boss", True)]
)
def test_a_body_is_read_after_the_key(path: str, key: bytes | None, is_read: bool) -> None:
    from dspark.deploy.gateway import Gateway  # imports Ray

    server: Any = {"api_key": ["right"], "admin_api_key": ["boss"]}
    plain = {"model": {"path": "x"}, "speculative": {"algorithm": "none"}}
    settings = Settings.model_validate({**plain, "server": server})
    replicas, received = Replicas(), []
    gateway = Gateway(replicas, settings)

    async def receive() -> Message:
        received.append(1)
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        pass

    headers = [(b"x-api-key", key)] if key is not None else []
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    asyncio.run(gateway.__serve_build_asgi_app__()(scope, receive, send))
    assert replicas.bodies == [b"{}" if is_read else b""]
    assert bool(received) == is_read
