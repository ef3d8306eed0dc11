"""What a training's folder was begun with, so that another one is known before it costs anything.

No torch here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import LoadError

_STATES = "checkpoints/step-*.pt"


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that is not what it was when the folder was begun."""

    name: str
    found: object  # in the folder
    asked: object


class StoredSettings:
    """settings.json: the settings that a training's steps depend on, by their dotted names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "settings.json"

    @property
    def have_steps(self) -> bool:
        """Whether steps were taken with them, of which a state is kept."""
        return any(self.folder.glob(_STATES))

    def changes(self, asked: Mapping[str, object]) -> list[Change]:
        """In the order of the file; none without one. A name that only one side has is no change.

        Raises LoadError for a file that is none of this command's.
        """
        if not self.path.exists():
            return []
        now = _plain(asked)
        return [
            Change(name, found, now[name])
            for name, found in self._read().items()
            if name in now and now[name] != found
        ]

    def write(self, asked: Mapping[str, object]) -> None:
        """Whole or not at all. Raises OSError when the disk is full."""
        from draft.atomic_write import whole_file  # its package loads torch

        with whole_file(self.path) as partial:
            partial.write_text(f"{json.dumps(asked, indent=2)}\n", encoding="utf-8")

    def _read(self) -> Mapping[str, object]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise LoadError(
                f"{self.path}: this is no JSON object; accepted: a file written by this command "
                "(without it, nothing is compared before the first step)"
            )
        return found


def _plain(asked: Mapping[str, object]) -> dict[str, object]:
    """As they come back from a file: a list for a tuple."""
    plain: dict[str, object] = json.loads(json.dumps(asked))
    return plain
