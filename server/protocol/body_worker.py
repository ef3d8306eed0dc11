"""Reads bodies in a separate process: a frame with a pickled (body, model) in, one out.

A frame is a length of 8 bytes and as many bytes. The result is the model's instance, or the
arguments of InvalidBody as a tuple.
"""

import pickle
import resource
import signal
import sys
from contextlib import suppress
from typing import IO, Any

from server.errors.validation_errors import InvalidBody
from server.protocol.body_reader import read_body

_MEMORY_BYTES = 2 * 2**30  # address space


def write_frame(stream: IO[bytes], value: object) -> None:
    content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream.write(len(content).to_bytes(8, "little"))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Return the next value. Raises EOFError at the end of the stream."""
    size = int.from_bytes(_exactly(stream, 8), "little")
    return pickle.loads(_exactly(stream, size))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server drains first, and ends this process
    with suppress(ValueError, OSError):  # systems without this limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with suppress(EOFError):
        while True:
            content, model = read_frame(sys.stdin.buffer)
            try:
                result: object = read_body(content, model)
            except InvalidBody as error:
                result = error.args
            write_frame(sys.stdout.buffer, result)
            del content, result
