"""HTTPS with a self-signed certificate of localhost."""

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from server.http.connections import ConnectionLimits
from server.http.graceful_server import GracefulServer
from server.http.listener import Listener
from server.http.tls import Certificate, certificate_of
from server.settings.loading import load_settings
from server.settings.schema import Settings, SettingsError
from server.settings.sources import read_flag
from tests.support.paths import TESTS
from tests.support.ports import free_port
from tests.support.server.clients import connection_to
from tests.support.server.fakes import FakeEngine, app_with, wait_until

TLS = TESTS / "support" / "server" / "tls"
FILE, KEY = str(TLS / "certificate.pem"), str(TLS / "key.pem")


def settings(**server: str) -> Settings:
    flags = {"model.path": "a/b", "speculative.algorithm": "none"}
    flags |= {f"server.{name}": value for name, value in server.items()}
    return load_settings(flags=[read_flag("-", *item) for item in flags.items()]).settings


async def nothing() -> None:
    pass


@contextmanager
def serving(limits: ConnectionLimits | None = None) -> Iterator[str]:
    """Yield the URL of an HTTPS server."""
    certificate = certificate_of(settings(ssl_certfile=FILE, ssl_keyfile=KEY))
    assert certificate == Certificate(FILE, KEY)
    started: list[bool] = []
    with Listener(host="127.0.0.1", port=free_port(), scheme="https") as listener:
        server = GracefulServer(
            app_with(FakeEngine("hello")),
            on_ready=lambda: started.append(True),
            drain=nothing,
            abandon=nothing,
            certificate=certificate,
            limits=limits,
        )
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
        thread.start()
        try:
            wait_until(lambda: bool(started))
            yield listener.url
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def test_a_certificate_enables_https() -> None:
    with serving() as url:
        trusted = ssl.create_default_context(cafile=FILE)
        response = httpx.post(f"{url}/generate", json={"text": "hi"}, verify=trusted)
        assert response.json()["text"] == "hello"


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_handshake_has_a_time_limit(sent: bytes) -> None:
    with serving(ConnectionLimits(header_s=0.3)) as url, connection_to(url) as connection:
        connection.settimeout(10)
        started = time.monotonic()
        connection.sendall(sent)
        while connection.recv(65536):  # an alert, if anything
            pass
        assert time.monotonic() - started < 5


def test_without_a_certificate_the_server_uses_plain_http() -> None:
    assert certificate_of(settings()) is None


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    for broken in (settings(ssl_certfile=FILE), settings(ssl_certfile=KEY, ssl_keyfile=KEY)):
        with pytest.raises(SettingsError, match=r"^server\.ssl_certfile: found .*accepted: a PEM"):
            certificate_of(broken)


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"ssl_keyfile is given without server\.ssl_certfile"):
        settings(ssl_keyfile=KEY)
