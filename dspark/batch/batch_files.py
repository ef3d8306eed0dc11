"""Reads requests and writes results, one JSON object a line, as OpenAI's batch files have them."""

import fcntl
import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self
from uuid import uuid4

from pydantic import Field

from server.errors.validation_errors import InvalidBody
from server.protocol.base import Body, JsonObject, Text
from server.protocol.body_reader import read_body
from server.settings.base import SettingsError

_BEGINNING = b'{"id": "batch_req_'  # of every line that is written here


class BatchRequest(Body):
    """One line of an input file."""

    custom_id: Annotated[Text, Field(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    body: JsonObject


def read_requests(file: Path) -> Iterator[BatchRequest]:
    """Yield the requests of a file. Raises SettingsError with the line at fault, and OSError."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            content = line.removeprefix(BOM_UTF8) if number == 1 else line
            if content.strip():
                yield _request(content, f"{file}:{number}")


def check_requests(file: Path) -> set[str]:
    """Return the custom_ids of a file. Raises as `read_requests`, and for two that are equal."""
    found: set[str] = set()
    for request in read_requests(file):
        if request.custom_id in found:
            raise SettingsError(
                f"{file}: custom_id {json.dumps(request.custom_id)} is given twice; accepted: once"
            )
        found.add(request.custom_id)
    if not found:
        raise SettingsError(f"{file}: found no request; accepted: one JSON object a line")
    return found


class ResultFile:
    """Appends results to a file, in a `with` block; one process at a time.

    `done` has the custom_ids of the results that an earlier run wrote. Its last line is removed if
    it is not whole.
    """

    def __init__(self, path: Path) -> None:
        """Raises SettingsError for a file with other lines, or in use, and OSError."""
        self._stream = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.done = frozenset(self._read(path))
            self.num_results = len(self.done)
        except BlockingIOError:
            self._stream.close()
            raise SettingsError(f"{path}: another process writes to this file") from None
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    def append(self, custom_id: str, status: int, request_id: str, body: Any) -> None:
        """Write one result as a whole line."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        line = {
            "id": f"batch_req_{uuid4().hex}",
            "custom_id": custom_id,
            "response": response,
            "error": None,
        }
        content = memoryview(json.dumps(line).encode() + b"\n")
        self.num_results += 1
        while content:
            content = content[self._stream.write(content) :]

    def _read(self, path: Path) -> Iterator[str]:
        """Yield the custom_ids of all whole lines, and remove the last line if it is not whole."""
        end = 0
        self._stream.seek(0)
        with open(os.dup(self._stream.fileno()), "rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)]):
                    break
                yield _custom_id(line, f"{path}:{number}")
                end += len(line)
        self._stream.truncate(end)


def _request(content: bytes, where: str) -> BatchRequest:
    try:
        return read_body(content, BatchRequest)
    except InvalidBody as error:
        raise SettingsError(f"{where}: {error.message.replace('the body', 'the line')}") from None


def _custom_id(line: bytes, where: str) -> str:
    try:
        custom_id = json.loads(line)["custom_id"]
    except (ValueError, TypeError, KeyError):
        custom_id = None
    if not isinstance(custom_id, str) or not line.startswith(_BEGINNING):
        raise SettingsError(
            f"{where}: found a line that `dspark batch` did not write; accepted: a new file, or "
            "the output of an earlier run"
        )
    return custom_id
