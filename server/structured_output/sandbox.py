"""Runs grammar compilation in sandbox processes with limits on time and memory."""

import json
import os
import select
import subprocess
import sys
import time
import weakref
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

_READ_BYTES = 65536  # at most, per read of a result
_START_TIMEOUT_S = 30.0  # of a process, which does not count against the grammar
# Only the package itself is looked up in its folder: files of the working directory cannot shadow
# it, and its neighbours cannot shadow the standard library.
_ROOT = Path(__file__).parents[2]
_WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
import server
del sys.path[0]
from server.structured_output.sandbox_worker import main
main()
"""


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
        try:
            sandbox = self._idle.get_nowait()
        except Empty:
            sandbox = _Sandbox()
        try:
            result = sandbox.check(request, self._timeout_s)
        except SandboxError:
            sandbox.kill()
            raise
        self._idle.put(sandbox)
        return result


class _Sandbox:
    """One process. A first trivial grammar waits for its start-up."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORKER, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.kill = weakref.finalize(self, _kill, self._child)
        self._has_started = False

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
            raise SandboxError("its compiler process has ended") from error
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
                raise SandboxError("takes too much memory to compile")
            line += piece
        return line


def _kill(child: "subprocess.Popen[bytes]") -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
