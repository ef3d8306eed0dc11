"""Starts, suspends, resumes and stops the programs of a benchmark."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from dspark.bench.http.server import ServerUnusable

_POLL_S = 0.1
_STOP_S = 20.0  # between SIGTERM and SIGKILL
_LAST_LINES = 5


class Process:
    """A command in a separate process group, so that signals also reach its workers."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, command: Sequence[str], *, log: Path) -> "Process":
        """Start a command; append its output to `log`. Raises ServerUnusable if it cannot start."""
        with log.open("ab") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerUnusable(f"{name}: cannot start {command[0]} ({error})") from error
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the end; return the exit code."""
        return await self._process.wait()

    def suspend(self) -> None:
        """Stop scheduling its processes; they keep their memory."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Terminate the process group, suspended or not; kill it after a timeout."""
        self._signal(signal.SIGTERM)
        self.resume()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_S)
        finally:
            self._signal(signal.SIGKILL)
        await self._process.wait()

    def output_tail(self) -> str:
        """Return the last lines of the output, and the path of the log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = " | ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
        return f"{tail or '(no output)'}; see {self._log}"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


async def is_healthy(client: httpx.AsyncClient) -> bool:
    """Return whether /health answers 200."""
    try:
        response = await client.get("/health")
    except httpx.HTTPError:
        return False
    return response.status_code == httpx.codes.OK


async def wait_until_healthy(
    process: Process, client: httpx.AsyncClient, *, timeout_s: float
) -> None:
    """Wait for /health. Raises ServerUnusable if the process ends or the time is over."""
    deadline = time.monotonic() + timeout_s
    while not await is_healthy(client):
        if process.exit_code is not None:
            raise ServerUnusable(
                f"{process.name} has ended with exit code {process.exit_code} before it served: "
                f"{process.output_tail()}"
            )
        if time.monotonic() > deadline:
            raise ServerUnusable(
                f"{process.name} does not serve after {timeout_s:g} s: {process.output_tail()}"
            )
        await asyncio.sleep(_POLL_S)
