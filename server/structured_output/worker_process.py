"""Starts a Python process that runs one module of the server, with pipes to it."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

# Only the package itself is looked up in its folder: files of the working directory cannot shadow
# it, and its neighbours cannot shadow the standard library.
_ROOT = Path(__file__).parents[2]
_CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import server
del sys.path[0]
from importlib import import_module
import_module(sys.argv[2]).main()
"""


def start_worker(
    module: str, *, stderr: IO[bytes] | int = subprocess.DEVNULL, bufsize: int = -1
) -> "subprocess.Popen[bytes]":
    """Start a process that runs the module's `main`, which reads stdin and writes stdout."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE, str(_ROOT), module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        bufsize=bufsize,
    )


def end_worker(child: "subprocess.Popen[bytes]") -> None:
    """Kill the process and close its pipes."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.kill()
    child.wait()
    child.stdout.close()
    with suppress(BrokenPipeError):  # what was not yet written
        child.stdin.close()
