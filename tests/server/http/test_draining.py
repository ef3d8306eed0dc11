"""SIGTERM: running requests finish, new ones are refused, the server exits."""

import asyncio
import signal
import threading
from collections.abc import Callable

import httpx

from engine import EngineDraining, Request, TokenEvent
from server.app import begin_draining
from server.http.graceful_server import GracefulServer
from server.http.listener import Listener
from tests.support.ports import free_port
from tests.support.server.fakes import FakeEngine, app_with, wait_until
from tests.support.server.responses import error_of


class DrainingEngine(FakeEngine):
    """Refuses new requests while it drains, as EngineClient requires."""

    def __init__(self) -> None:
        super().__init__("hello world", steps_before_pause=1)
        self.is_draining = False

    def go_on(self) -> None:
        self._steps_before_pause = None

    async def generate(self, request: Request, on_event: Callable[[TokenEvent], None]) -> None:
        if self.is_draining:
            raise EngineDraining("the server is shutting down and takes no new requests")
        await super().generate(request, on_event)

    async def drain(self, timeout_s: float) -> bool:
        self.is_draining = True
        while self.running:
            await asyncio.sleep(0.005)
        return True


def test_running_requests_finish_and_new_ones_are_refused() -> None:
    engine, started = DrainingEngine(), threading.Event()
    app = app_with(engine)

    async def drain() -> None:
        begin_draining(app)
        await engine.drain(30)

    async def abandon() -> None:
        raise AssertionError("abandon was called")

    with Listener(host="127.0.0.1", port=free_port()) as listener:
        server = GracefulServer(app, on_ready=started.set, drain=drain, abandon=abandon)
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
        thread.start()
        assert started.wait(timeout=30)
        body = {"text": "hi", "stream": True}
        with (
            httpx.Client(base_url=listener.url, timeout=30) as client,
            client.stream("POST", "/generate", json=body) as stream,
        ):
            lines = stream.iter_lines()
            assert "hel" in next(lines)
            server.handle_exit(signal.SIGTERM, None)
            wait_until(lambda: engine.is_draining)
            refused = httpx.post(f"{listener.url}/generate", json={"text": "hi"})
            assert error_of(refused, 503)["code"] == "draining"
            assert refused.headers["retry-after"] == "1"
            assert error_of(httpx.get(f"{listener.url}/ready"), 503)["code"] == "draining"
            assert httpx.get(f"{listener.url}/health").status_code == 200
            engine.go_on()
            rest = list(lines)
        assert '"text":"hello world"' in rest[-4]
        assert rest[-2] == "data: [DONE]"
        thread.join(timeout=30)
        assert not thread.is_alive()
