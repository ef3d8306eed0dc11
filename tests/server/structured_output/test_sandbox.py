"""The sandbox: a crash names its cause, and the next grammar gets a new process."""

import os
import signal

import pytest

from server.structured_output import worker_process
from server.structured_output.sandbox import SandboxError, SandboxPool

_CRASH = "import os, signal, sys; sys.stdin.readline(); print('{}', flush=True)"
REQUEST = {"kind": "regex", "text": "ab"}


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its compiler process ended by SIGSEGV"),
        ("sys.exit(3)", "its compiler process ended with exit code 3"),
        ("raise MemoryError", "takes too much memory to compile"),
        ("raise ZeroDivisionError('x')", "exit code 1: ZeroDivisionError: x"),
        (
            "sys.stderr.write('memory allocation of 8 bytes failed'); os.abort()",
            "takes too much memory to compile",
        ),
        (
            "sys.stderr.write('thread main has overflowed its stack'); os.abort()",
            "is nested too deeply",
        ),
    ],
)
def test_a_crash_names_its_cause(end: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_CODE", f"{_CRASH}\nsys.stdin.readline()\n{end}")
    with pytest.raises(SandboxError, match=reason):
        SandboxPool(timeout_s=10).check(REQUEST)


def test_a_process_that_ended_while_idle_is_replaced() -> None:
    pool = SandboxPool(timeout_s=10)
    assert "part" in pool.check(REQUEST)
    idle = pool._idle.get_nowait()
    os.kill(idle._child.pid, signal.SIGKILL)
    idle._child.wait()
    pool._idle.put(idle)
    assert "part" in pool.check(REQUEST)
