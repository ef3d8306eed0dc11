"""A program that a benchmark starts: a server to be asked, or a measurement of its own."""

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
_STOP_S = 20.0  # for a program to end by itself, before it is killed
_LAST_LINES = 5


class Process:
    """A command with all the processes that it starts.

    It leads a process group of its own, so that freezing and stopping reach its workers too.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, command: Sequence[str], *, log: Path) -> "Process":
        """Its output goes to the end of `log`. Raises ServerUnusable without such a program."""
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
        """Its exit code, once it has ended."""
        return await self._process.wait()

    def freeze(self) -> None:
        """From now on it takes no time of any core, and keeps its memory."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Ask it to end, frozen or not; whatever is left of its group after a while is killed."""
        self._signal(signal.SIGTERM)
        self.thaw()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_S)
        finally:
            self._signal(signal.SIGKILL)
        await self._process.wait()

    def last_words(self) -> str:
        """How its output ends, and where all of it is."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = " | ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
        return f"{said or '(no output)'}; see {self._log}"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


async def is_healthy(client: httpx.AsyncClient) -> bool:
    """Whether the server says so: servers of this kind answer /health with 200 once they serve."""
    try:
        answer = await client.get("/health")
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK


async def wait_until_healthy(
    process: Process, client: httpx.AsyncClient, *, timeout_s: float
) -> None:
    """Raises ServerUnusable, with its last words, when it ends first or takes longer."""
    deadline = time.monotonic() + timeout_s
    while not await is_healthy(client):
        if process.exit_code is not None:
            raise ServerUnusable(
                f"{process.name} has ended with exit code {process.exit_code} before it served: "
                f"{process.last_words()}"
            )
        if time.monotonic() > deadline:
            raise ServerUnusable(
                f"{process.name} does not serve after {timeout_s:g} s: {process.last_words()}"
            )
        await asyncio.sleep(_POLL_S)
