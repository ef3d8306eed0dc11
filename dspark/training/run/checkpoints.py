"""Saves and loads checkpoints of a training, atomically and only for the same run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from draft.atomic_write import whole_file
from dspark.training.errors import TrainingError

_PATTERN = "step-*.pt"
_MAX_CHECKPOINTS = 2
_ABSENT = "nothing"


class Checkpoints:
    """The checkpoints of one run; `identity` must be equal when it resumes."""

    def __init__(self, *, folder: Path, identity: Mapping[str, object]) -> None:
        self._folder = folder
        self._identity = dict(identity)

    def save(self, state: Mapping[str, Any], *, step: int) -> Path:
        """Save a state and remove old ones. Raises OSError and then keeps the old ones."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"step-{step:08d}.pt"
        save_atomically({"identity": self._identity, "state": dict(state)}, path)
        for old in self._files()[:-_MAX_CHECKPOINTS]:
            old.unlink()
        return path

    def load_newest(self) -> Mapping[str, Any] | None:
        """Load the last state; None without any.

        Raises TrainingError for an unreadable file, or with the field in which the runs differ.
        """
        files = self._files()
        if not files:
            return None
        try:
            found = torch.load(files[-1], map_location="cpu", weights_only=True)
            identity, state = found["identity"], found["state"]
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise TrainingError(
                f"checkpoint {files[-1]}: cannot be read ({reason}); accepted: a file written by "
                "this command; remove it to resume from the previous one"
            ) from error
        self._refuse_another_run(files[-1], identity)
        assert isinstance(state, dict)
        return state

    def _refuse_another_run(self, file: Path, identity: Mapping[str, object]) -> None:
        for name in sorted(self._identity.keys() | identity.keys()):
            was, now = identity.get(name, _ABSENT), self._identity.get(name, _ABSENT)
            if was != now:
                raise TrainingError(
                    f"{name}: found {now}; accepted: {was}, the value of the training in "
                    f"{file.parent} (use another output folder for a new one)"
                )

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(_PATTERN))


def save_atomically(content: Mapping[str, Any], path: Path) -> None:
    """Save a torch file atomically. Raises OSError."""
    with whole_file(path) as partial, partial.open("wb") as file:
        try:
            torch.save(dict(content), file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch raises its own error after it
                raise error.__context__ from None
            raise
