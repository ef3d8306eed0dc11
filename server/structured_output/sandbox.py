"""The processes in which grammars are tried, from the server's side."""

import json
import os
import select
import subprocess
import sys
import time
import weakref
from queue import Empty, SimpleQueue
from typing import Any

_CHUNK = 65536  # bytes of an answer that are read at once
_START_SECONDS = 30.0  # for a process to be there; it is not the grammar's fault if it is slow


class ProbeFailed(Exception):
    """The process ran out of time or memory, or crashed; the message says which."""


class Probes:
    """As many processes as are asked at once; each serves one caller at a time. Thread-safe.

    A process starts when it is needed and lives until a grammar ends it, or its owner is gone.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._idle: SimpleQueue[_Probe] = SimpleQueue()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """See server.grammars.probe. Blocks for timeout_s at most. Raises ProbeFailed."""
        try:
            probe = self._idle.get_nowait()
        except Empty:
            probe = _Probe()
        try:
            answer = probe.ask(request, self._timeout_s)
        except ProbeFailed:
            probe.end()
            raise
        self._idle.put(probe)
        return answer


class _Probe:
    """One process. It has said that it is there before it is asked anything."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "server.structured_output.sandbox_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.end = weakref.finalize(self, _end, self._child)
        self._has_started = False

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if not self._has_started:
            self._exchange({"kind": "regex", "text": "a"}, _START_SECONDS)
            self._has_started = True
        return self._exchange(request, timeout_s)

    def _exchange(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._child.stdin is not None
        ends_at = time.monotonic() + timeout_s
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise ProbeFailed("its compiler had to be ended") from error
        line = self._line(ends_at, timeout_s)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _line(self, ends_at: float, timeout_s: float) -> bytes:
        assert self._child.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            left = max(0.0, ends_at - time.monotonic())
            readable, _, _ = select.select([self._child.stdout], [], [], left)
            if not readable:
                raise ProbeFailed(f"takes longer than {timeout_s:g} s to compile")
            piece = os.read(self._child.stdout.fileno(), _CHUNK)
            if not piece:
                raise ProbeFailed("takes too much memory to compile")
            line += piece
        return line


def _end(child: "subprocess.Popen[bytes]") -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
