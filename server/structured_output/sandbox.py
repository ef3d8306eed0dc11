"""Runs grammar compilation in sandbox processes with limits on time and memory."""

import json
import os
import select
import subprocess
import time
import weakref
from queue import Empty, SimpleQueue
from signal import Signals
from tempfile import TemporaryFile
from typing import IO, Any

from server.structured_output.worker_process import end_worker, start_worker

_READ_BYTES = 65536  # at most, per read of a result
_MAX_REASON_CHARS = 200
_START_TIMEOUT_S = 30.0  # of a process, which does not count against the grammar


class SandboxError(Exception):
    """The process ran out of time or memory, or crashed; the message has the reason."""


class SandboxPool:
    """Keeps one process per concurrent caller. Thread-safe.

    A process starts on demand. It lives until a grammar exceeds its limits, or the pool is
    garbage-collected.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._idle: SimpleQueue[_Sandbox] = SimpleQueue()

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a request that `sandbox_worker` describes.

        Blocks for at most timeout_s. Raises SandboxError.
        """
        sandbox = self._running()
        try:
            result = sandbox.check(request, self._timeout_s)
        except SandboxError:
            sandbox.kill()
            raise
        self._idle.put(sandbox)
        return result

    def _running(self) -> "_Sandbox":
        """Return an idle process, or a new one; one that has ended while idle is dropped."""
        while True:
            try:
                sandbox = self._idle.get_nowait()
            except Empty:
                return _Sandbox()
            if sandbox.is_running:
                return sandbox
            sandbox.kill()


class _Sandbox:
    """One process. A first trivial grammar waits for its start-up."""

    def __init__(self) -> None:
        self._errors = TemporaryFile()  # noqa: SIM115 -- `kill` closes it
        self._child = start_worker(
            "server.structured_output.sandbox_worker", stderr=self._errors, bufsize=0
        )
        self.kill = weakref.finalize(self, _kill, self._child, self._errors)
        self._has_started = False

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def check(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if not self._has_started:
            self._exchange({"kind": "regex", "text": "a"}, _START_TIMEOUT_S)
            self._has_started = True
        return self._exchange(request, timeout_s)

    def _exchange(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._child.stdin is not None
        deadline = time.monotonic() + timeout_s
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise SandboxError(self._crash()) from error
        line = self._read_line(deadline, timeout_s)
        result: dict[str, Any] = json.loads(line)
        return result

    def _read_line(self, deadline: float, timeout_s: float) -> bytes:
        assert self._child.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            remaining = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._child.stdout], [], [], remaining)
            if not readable:
                raise SandboxError(f"takes longer than {timeout_s:g} s to compile")
            piece = os.read(self._child.stdout.fileno(), _READ_BYTES)
            if not piece:
                raise SandboxError(self._crash())
            line += piece
        return line

    def _crash(self) -> str:
        """Return why the process has ended."""
        code = self._child.wait()
        self._errors.seek(0)
        errors = self._errors.read(_READ_BYTES).decode(errors="replace").strip()
        if "memory allocation of" in errors or "MemoryError" in errors:
            return "takes too much memory to compile"
        if "overflowed its stack" in errors:
            return "is nested too deeply"
        how = f"by {Signals(-code).name}" if code < 0 else f"with exit code {code}"
        last = errors.rpartition("\n")[2][:_MAX_REASON_CHARS]
        return f"its compiler process ended {how}" + (f": {last}" if last else "")


def _kill(child: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
    end_worker(child)
    errors.close()
