"""States of a training on disk: whole or not at all, and only for the run that they belong to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from draft.atomic_write import whole_file
from dspark.training.errors import TrainingError

_PATTERN = "step-*.pt"
_KEPT = 2
_ABSENT = "nothing"


class Checkpoints:
    """The checkpoints of one run. `identity` is what must not change between its parts."""

    def __init__(self, *, folder: Path, identity: Mapping[str, object]) -> None:
        self._folder = folder
        self._identity = dict(identity)

    def save(self, state: Mapping[str, Any], *, step: int) -> Path:
        """Write a state and forget all but the newest few. Raises OSError, leaving the old ones."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"step-{step:08d}.pt"
        save_whole({"identity": self._identity, "state": dict(state)}, path)
        for old in self._files()[:-_KEPT]:
            old.unlink()
        return path

    def load_newest(self) -> Mapping[str, Any] | None:
        """The last state; None if there is none yet.

        Raises TrainingError naming the field in which this run differs from the one that wrote it.
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
                "this command; remove it to continue from the one before"
            ) from error
        self._refuse_another_run(files[-1], identity)
        assert isinstance(state, dict)
        return state

    def _refuse_another_run(self, file: Path, identity: Mapping[str, object]) -> None:
        for name in sorted(self._identity.keys() | identity.keys()):
            was, now = identity.get(name, _ABSENT), self._identity.get(name, _ABSENT)
            if was != now:
                raise TrainingError(
                    f"{name}: found {now}; accepted: {was}, with which the training in "
                    f"{file.parent} began (another output folder begins a new one)"
                )

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(_PATTERN))


def save_whole(content: Mapping[str, Any], path: Path) -> None:
    """A file of torch's, whole or not at all. Raises OSError."""
    with whole_file(path) as partial, partial.open("wb") as file:
        try:
            torch.save(dict(content), file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # over which torch stumbles once more
                raise error.__context__ from None
            raise
