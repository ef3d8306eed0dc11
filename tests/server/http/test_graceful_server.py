"""GracefulServer handles signals; Listener binds the address early."""

import asyncio
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fastapi import FastAPI

from server.http.graceful_server import GracefulServer
from server.http.listener import Listener, PortInUse
from tests.support.ports import free_port
from tests.support.server.fakes import wait_until


class SlowService:
    """A route that blocks until may_finish, and a drain that waits for it."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.num_running = 0
        self.may_finish = False
        self.is_draining = False
        self.log: list[str] = []
        self.app.add_api_route("/slow", self.slow)
        self.app.add_api_route("/alive", self.alive)

    async def slow(self) -> str:
        self.num_running += 1
        while not self.may_finish:
            await asyncio.sleep(0.005)
        self.num_running -= 1
        return "done"

    async def alive(self) -> str:
        return "alive"

    async def drain(self) -> None:
        self.is_draining = True
        while self.num_running:
            await asyncio.sleep(0.005)
        self.log.append("drained")

    async def abandon(self) -> None:
        self.log.append("abandoned")
        self.may_finish = True


@contextmanager
def running(
    service: SlowService, *, has_failed: Callable[[], bool] = lambda: False
) -> Iterator[tuple[GracefulServer, str, threading.Thread]]:
    with Listener(host="127.0.0.1", port=free_port()) as listener:
        server = GracefulServer(
            service.app,
            on_ready=lambda: service.log.append("ready"),
            drain=service.drain,
            abandon=service.abandon,
            has_failed=has_failed,
        )
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
        thread.start()
        try:
            wait_until(lambda: "ready" in service.log)
            yield server, listener.url, thread
        finally:
            service.may_finish = True
            server.should_exit = True
            thread.join(timeout=10)
            assert not thread.is_alive(), "the web server does not end"


def fetch(url: str, into: list[str]) -> threading.Thread:
    def run() -> None:
        with urllib.request.urlopen(url, timeout=10) as response:
            into.append(response.read().decode())

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_first_signal_lets_a_running_request_finish() -> None:
    service, responses = SlowService(), []  # type: tuple[SlowService, list[str]]
    with running(service) as (server, url, thread):
        client = fetch(f"{url}/slow", responses)
        wait_until(lambda: service.num_running == 1)
        server.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: service.is_draining)
        fetch(f"{url}/alive", responses).join()
        assert responses == ['"alive"']  # still serves while it drains
        service.may_finish = True
        client.join()
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert responses[1:] == ['"done"']
    assert service.log == ["ready", "drained"]


def test_the_second_signal_aborts_what_the_first_one_waits_for() -> None:
    service, responses = SlowService(), []  # type: tuple[SlowService, list[str]]
    with running(service) as (server, url, thread):
        client = fetch(f"{url}/slow", responses)
        wait_until(lambda: service.num_running == 1)
        server.handle_exit(signal.SIGINT, None)
        server.handle_exit(signal.SIGINT, None)
        client.join()
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert service.log == ["ready", "abandoned", "drained"]


def test_idle_connections_outlast_those_of_load_balancers() -> None:
    with running(SlowService()) as (server, _, _):
        assert server.config.timeout_keep_alive > 60


def test_connections_are_refused_after_the_exit() -> None:
    service = SlowService()
    with running(service) as (server, url, thread):
        server.handle_exit(signal.SIGTERM, None)
        thread.join(timeout=10)
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{url}/alive", timeout=5)


def test_no_connection_waits_for_acknowledgements() -> None:
    """With Nagle's algorithm on, each response of two writes takes 40 ms more."""

    async def option_of_a_connection() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        class Peer(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                connection = transport.get_extra_info("socket")
                accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        with Listener(host="127.0.0.1", port=0) as listener:
            server = await asyncio.get_running_loop().create_server(Peer, sock=listener.socket)
            async with server:
                port = listener.socket.getsockname()[1]
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                option = await accepted
                writer.close()
        return option

    assert asyncio.run(option_of_a_connection()) == 1


def test_a_port_in_use_fails_at_the_bind() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"^server\.port: 127\.0\.0\.1:{port} is in use"):
            Listener(host="127.0.0.1", port=port)


def test_a_port_taken_after_the_bind_fails_at_listen() -> None:
    port = free_port()
    with (
        Listener(host="127.0.0.1", port=port) as slow,
        Listener(host="127.0.0.1", port=port) as fast,
    ):
        fast.listen()
        with pytest.raises(PortInUse):
            slow.listen()


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match=r"^server\.host: cannot listen on 192\.0\.2\.1:80"):
        Listener(host="192.0.2.1", port=8000)


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1"), ("127.0.0.1", "http://127.0.0.1")]
)
def test_the_url_is_one_that_a_client_can_use(host: str, url: str) -> None:
    port = free_port()
    with Listener(host=host, port=port) as listener:
        assert listener.url == f"{url}:{port}"


def test_a_service_that_has_failed_ends_by_itself() -> None:
    service, has_failed = SlowService(), threading.Event()
    with running(service, has_failed=has_failed.is_set) as (_, url, thread):
        responses: list[str] = []
        fetch(f"{url}/alive", responses).join()
        assert responses == ['"alive"']
        has_failed.set()
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert service.log == ["ready"], "nothing is drained"
