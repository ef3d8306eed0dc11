"""A file of JSON objects, one a line, that a killed run goes on with."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from engine.errors import LoadError


class LineFile:
    """Every line is on the disk before the next is written, so that a kill costs one at most."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Mapping[str, object]) -> None:
        """Raises OSError when the disk is full; what was there before stays."""
        from draft.atomic_write import append_line  # its package loads torch

        append_line(self.path, json.dumps(entry))

    def lines(self) -> list[Mapping[str, object]]:
        """All of them; half a line at the end, which a kill left, is cut off.

        Raises LoadError for a line that is none of this command's.
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
                f"{self.path}:{number}: this is no JSON object; accepted: a line written by this "
                "command (remove it, and what it said is made again)"
            )
        return found
