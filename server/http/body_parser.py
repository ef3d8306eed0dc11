"""Parses request bodies: small ones at once, large ones in a process that does not block others."""

import asyncio
import subprocess
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import BaseModel

from server.errors.validation_errors import InvalidBody
from server.protocol.body_reader import read_body
from server.protocol.body_worker import read_frame, write_frame
from server.structured_output.worker_process import end_worker, start_worker

# json.loads holds the interpreter for 3 ms at this size, and for up to 0.9 s at 8 MB.
_INLINE_BYTES = 256 * 1024

B = TypeVar("B", bound=BaseModel)


class BodyParser:
    """Reads bodies as instances of their models. Large ones take turns in one process.

    The process starts with `start`, or with the first large body.
    """

    def __init__(self) -> None:
        self._turns = ThreadPoolExecutor(1, thread_name_prefix="body-parser")
        self._worker = _Worker()

    def start(self) -> None:
        """Start the process in the background, so that no request waits for it."""
        self._turns.submit(self._worker.start)

    async def parse(self, content: bytes, model: type[B]) -> B:
        """Return the body as an instance of its model. Raises InvalidBody."""
        if len(content) <= _INLINE_BYTES:
            return read_body(content, model)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._turns, self._worker.read, content, model)
        if isinstance(result, tuple):
            raise InvalidBody(*result)
        assert isinstance(result, model)
        return result


class _Worker:
    """The process; another one replaces it where it has ended."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., _Worker] | None = None

    def start(self) -> "subprocess.Popen[bytes]":
        if self._child is None:
            self._child = start_worker("server.protocol.body_worker")
            self._end = weakref.finalize(self, end_worker, self._child)
        return self._child

    def read(self, content: bytes, model: type[BaseModel]) -> object:
        """Return the model's instance, or the arguments of InvalidBody."""
        for _ in range(2):  # the process may have ended since the last body
            child = self.start()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                write_frame(child.stdin, (content, model))
                return read_frame(child.stdout)
            except (BrokenPipeError, EOFError):
                self._discard()
        return "the body takes too much memory to parse", None, "invalid_value"

    def _discard(self) -> None:
        if self._end is not None:
            self._end()
        self._child = self._end = None
