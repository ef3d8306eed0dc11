"""Accepts connections within the limit on file descriptors, and bounds the time of each request."""

import asyncio
import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

_RESERVED = 32  # descriptors that connections leave to files, pipes and profiles
_POLL_S = 0.05
_LOG_INTERVAL_S = 60.0
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on a connection before its request is complete, in seconds."""

    # From the connection to the end of a TLS handshake; then, or from a head's first byte, to the
    # head's end.
    header_s: float = 15.0
    body_s: float = 60.0  # from the head's end to the body's end


def max_connections() -> int:
    """Return how many connections the free file descriptors of this process allow."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 2**20
    return max(1, limit - len(os.listdir("/dev/fd")) - _RESERVED)


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, which ends where a head or a body takes too long.

    h11 serves `Upgrade: h2c` requests as plain ones and sends HTTP/1.0 streams without chunks.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._phase: Literal["head", "body"] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter("head")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(None)
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the request is served without the upgrade, as HTTP allows."""

    def _follow(self) -> None:
        """Enter the phase that the parser is in."""
        state = self.conn.their_state
        if self.transport.is_closing():
            self._enter(None)
        elif state is h11.SEND_BODY:
            self._enter("body")
        elif state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0]):
            self._enter("head")
        else:
            self._enter(None)

    def _enter(self, phase: Literal["head", "body"] | None) -> None:
        if phase == self._phase:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._phase, self._timer = phase, None
        if phase is not None:
            seconds = self._limits.header_s if phase == "head" else self._limits.body_s
            self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        """Close the connection; a request that has begun gets status 408."""
        has_begun = self._phase == "body" or self.conn.trailing_data[0]
        if has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = HTTPStatus.REQUEST_TIMEOUT
            headers = [("content-length", "0"), ("connection", "close")]
            response = h11.Response(
                status_code=status, headers=headers, reason=status.phrase.encode()
            )
            head = self.conn.send(response)
            self.transport.write((head or b"") + (self.conn.send(h11.EndOfMessage()) or b""))
        self.transport.close()


class Acceptor:
    """Accepts connections of one listening socket, at most `most` at a time."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        ssl: SSLContext | None,
        new_protocol: Callable[[], asyncio.Protocol],
        num_open: Callable[[], int],
        most: int,
        handshake_s: float,
    ) -> None:
        """handshake_s: the longest TLS handshake."""
        self._listener = listener
        self._ssl = ssl
        self._new_protocol = new_protocol
        self._num_open = num_open
        self._most = most
        self._handshake_s = handshake_s if ssl is not None else None
        self._opening: set[asyncio.Task[None]] = set()
        self._next_log = 0.0

    async def run(self) -> None:
        """Accept until cancelled. Further connections wait in the system's queue meanwhile."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            while self._num_open() + len(self._opening) >= self._most:
                self._log_pause("the limit that `ulimit -n` allows")
                await asyncio.sleep(_POLL_S)
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    continue  # the client has gone
                self._log_pause(error.strerror or str(error))
                await asyncio.sleep(_POLL_S)
            else:
                task = loop.create_task(self._open(connection))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        """Hand the connection to its protocol, after the TLS handshake if there is one."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._new_protocol,
                connection,
                ssl=self._ssl,
                ssl_handshake_timeout=self._handshake_s,
            )
        except (OSError, TimeoutError) as error:
            logger.debug("a connection was not opened: %s", error)
            connection.close()

    def _log_pause(self, reason: str) -> None:
        if time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + _LOG_INTERVAL_S
            logger.warning(
                "accepting is paused: %d connections are open, %s; new ones wait",
                self._num_open() + len(self._opening),
                reason,
            )
