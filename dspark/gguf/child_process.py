"""Runs a program without output while the caller shows progress."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

_TICK_SECONDS = 0.2


class ChildFailed(Exception):
    """The program ended with an error; the message is its last line."""


def run_child(
    command: Sequence[str], *, tick: Callable[[], None], extra_env: Mapping[str, str] | None = None
) -> None:
    """Run `command` to its end and call `tick` about five times a second.

    Its output does not reach the terminal. An exception from `tick`, such as an interrupt, kills
    it. Raises ChildFailed, or OSError if it cannot start.
    """
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(extra_env or {})},
        )
        try:
            while child.poll() is None:
                tick()
                time.sleep(_TICK_SECONDS)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
        if child.returncode != 0:
            output.seek(0)
            raise ChildFailed(_last_line(output.read(), child.returncode))


def _last_line(output: bytes, returncode: int) -> str:
    """Return the last line with text, or a sentence with the exit status."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    texts = [line for line in lines if line]
    if texts:
        return texts[-1]
    return f"ended with status {returncode} and wrote nothing"
