"""Reads and appends JSON lines in a file from which an interrupted run resumes."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from engine.errors import LoadError


class JsonLinesFile:
    """A file of JSON objects, synced after each line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Mapping[str, object]) -> None:
        """Append a line. Raises OSError if the disk is full; the file keeps its content."""
        from draft.atomic_write import append_line  # loads torch

        append_line(self.path, json.dumps(entry))

    def lines(self) -> list[Mapping[str, object]]:
        """Return all lines; truncates an incomplete last line of an interrupted run.

        Raises LoadError for an invalid line.
        """
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        return [self._line(number, line) for number, line in enumerate(whole.splitlines(), 1)]

    def _line(self, number: int, line: bytes) -> Mapping[str, object]:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise LoadError(
                f"{self.path}:{number}: found no JSON object; accepted: a line written by this "
                "command (remove it to generate its content again)"
            )
        return found
