"""Stores the settings of a training in its folder, to detect changes early. Loads no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import LoadError

_STATES = "checkpoints/step-*.pt"


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that differs from the stored one."""

    name: str
    found: object  # stored in the folder
    requested: object


class StoredSettings:
    """settings.json: the settings on which the steps of a training depend, by dotted name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "settings.json"

    @property
    def have_steps(self) -> bool:
        """Whether the folder has a checkpoint of steps with these settings."""
        return any(self.folder.glob(_STATES))

    def changes(self, requested: Mapping[str, object]) -> list[Change]:
        """Return changes in the order of the file; names that only one side has are ignored.

        Raises LoadError for an invalid file.
        """
        if not self.path.exists():
            return []
        now = _plain(requested)
        return [
            Change(name, found, now[name])
            for name, found in self._read().items()
            if name in now and now[name] != found
        ]

    def write(self, requested: Mapping[str, object]) -> None:
        """Write the settings atomically. Raises OSError if the disk is full."""
        from draft.atomic_write import whole_file  # loads torch

        with whole_file(self.path) as partial:
            partial.write_text(f"{json.dumps(requested, indent=2)}\n", encoding="utf-8")

    def _read(self) -> Mapping[str, object]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise LoadError(
                f"{self.path}: found no JSON object; accepted: a file written by this command "
                "(remove it to skip the comparison of settings)"
            )
        return found


def _plain(requested: Mapping[str, object]) -> dict[str, object]:
    """Convert to the values that JSON returns: a list for a tuple."""
    plain: dict[str, object] = json.loads(json.dumps(requested))
    return plain
