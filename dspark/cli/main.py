"""Runs `dspark COMMAND ...` and reports every expected failure in one line.

Exit codes: 0 success, 1 failure, 2 wrong command line or settings, 130 interrupted, 143 terminated.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from dspark.cli.commands import COMMANDS, Command
from engine import EngineError
from engine.errors import os_error_text
from engine.platform.host import installed_version
from engine.platform.openmp import limit_spinning
from server.settings.base import SettingsError, shown
from server.settings.flags import Parser
from server.settings.names import did_you_mean

_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    limit_spinning()
    try:
        with _terminated_as_an_exception():
            return _run(words)
    except SettingsError as error:
        return _fail(error.lines, 2)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        _forget_output()
        return 1
    except EngineError as error:
        return _fail([str(error)], 1)
    except OSError as error:
        return _fail([os_error_text(error)], 1)
    except KeyboardInterrupt:
        print("dspark: interrupted", file=sys.stderr)
        return _INTERRUPTED


def find_command(words: Sequence[str]) -> Command:
    """Find the command of a line: `bench serve` before `bench`. Raises SettingsError."""
    for count in (2, 1):
        name = " ".join(words[:count])
        found = next((command for command in COMMANDS if command.name == name), None)
        if found is not None:
            return found
    names = [command.name for command in COMMANDS]
    known = [*names, "--help", "--version"]
    near = did_you_mean(words[0], known, otherwise=", ".join(names))
    raise SettingsError(f"unknown command {shown(words[0])}{near}")


def command_parser(command: Command) -> Parser:
    """Build the parser of one command, with its help."""
    module = command.load()
    parser = Parser(prog=f"dspark {command.name}", usage=module.USAGE, description=module.__doc__)
    module.add_arguments(parser)
    return parser


def overview() -> str:
    """Write what `dspark --help` prints."""
    width = max(len(command.name) for command in COMMANDS)
    commands = [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS]
    return "\n".join(
        [
            "usage: dspark COMMAND [options]",
            "",
            "Serve a Hugging Face model, made faster by a DSpark draft.",
            "",
            "commands:",
            *commands,
            "",
            "`dspark COMMAND --help` explains one; `dspark --version` prints the version.",
        ]
    )


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(installed_version("dspark-server") or "unknown (dspark-server is not installed)")
        return 0
    command = find_command(words)
    rest = words[len(command.name.split()) :]
    try:
        args: argparse.Namespace = command_parser(command).parse_strictly(rest)
    except SystemExit as done:  # argparse has printed the help
        return int(done.code or 0)
    return command.load().run(args)


def _fail(complaints: Sequence[str], code: int) -> int:
    for complaint in complaints:
        line = shown(" ".join(complaint.split()), 2000)
        # A complaint about the command line begins with the command's name.
        print(line if line.startswith("dspark ") else f"dspark: {line}", file=sys.stderr)
    return code


def _forget_output() -> None:
    """Redirect stdout to nowhere, so that the flush at exit does not fail again."""
    with suppress(OSError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


@contextmanager
def _terminated_as_an_exception() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that cleanup runs as after an interrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_exit(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(_TERMINATED)
