"""Runs the web server: drains at the first signal, aborts at the second, exits at the third."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from server.http.connections import (
    Acceptor,
    ConnectionLimits,
    TimedProtocol,
    max_connections,
)
from server.http.tls import Certificate

_FLUSH_SECONDS = 5  # for last bytes to slow clients, after the drain
# Longer than the usual 60 s of load balancers: the side that sends requests should close an idle
# connection first, because only that side sees requests in flight.
_IDLE_SECONDS = 75


class GracefulServer(uvicorn.Server):
    """A uvicorn server that lets requests finish before it closes connections.

    The first SIGTERM or SIGINT runs `drain`, during which responses are still sent; then the
    server exits. A second signal runs `abandon`, which makes `drain` return soon. A third exits
    at once.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        on_ready: Callable[[], None],
        drain: Callable[[], Coroutine[Any, Any, None]],
        abandon: Callable[[], Coroutine[Any, Any, None]],
        certificate: Certificate | None = None,
        has_failed: Callable[[], bool] = lambda: False,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """has_failed: the server exits once it returns True."""
        self._limits = limits or ConnectionLimits()
        self._protocol = partial(TimedProtocol, limits=self._limits)
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",  # as TimedProtocol, whatever else is installed
                loop="asyncio",  # also where an extra has installed another one
                log_config=None,
                access_log=False,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=_FLUSH_SECONDS,
                timeout_keep_alive=_IDLE_SECONDS,
                ssl_certfile=certificate.file if certificate else None,
                ssl_keyfile=certificate.keyfile if certificate else None,
            )
        )
        self._on_ready = on_ready
        self._drain = drain
        self._abandon = abandon
        self._has_failed = has_failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._num_signals = 0
        self._acceptors: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections of the sockets, which listen already."""
        await super().startup(sockets=[])
        self._loop = asyncio.get_running_loop()
        if not self.started:
            return
        most = max_connections()
        for listener in sockets or []:
            acceptor = Acceptor(
                listener,
                ssl=self.config.ssl,
                new_protocol=self._new_protocol,
                num_open=lambda: len(self.server_state.connections),
                most=most,
                handshake_s=self._limits.header_s,
            )
            self._acceptors.append(asyncio.create_task(acceptor.run()))
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.cancel()
        await asyncio.gather(*self._acceptors, return_exceptions=True)
        await super().shutdown(sockets=sockets)

    def _new_protocol(self) -> TimedProtocol:
        return self._protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._has_failed()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        if self._loop is None or self._num_signals > 2:
            self.should_exit = self.force_exit = True
        else:
            first = self._num_signals == 1
            self._loop.call_soon_threadsafe(
                self._spawn, self._drain_and_exit if first else self._abandon
            )

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(asyncio.create_task(work()))

    async def _drain_and_exit(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True
