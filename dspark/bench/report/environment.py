"""Records the machine, commit and versions of a measurement. Loads no torch."""

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from engine.platform.host import available_cores, cpu_name, installed_version, load_average

_PACKAGES = ("dspark-server", "torch", "transformers", "numpy")
_GIT_TIMEOUT_S = 5
_BUSY = 1.0  # load average of one busy process


@dataclass(frozen=True, slots=True)
class Start:
    """Time and load of the machine before a measurement."""

    time: datetime
    load_average: float | None  # of the last minute; None if unknown

    @classmethod
    def now(cls) -> "Start":
        return cls(datetime.now(UTC), load_average())

    @property
    def is_busy(self) -> bool:
        return self.load_average is not None and self.load_average > _BUSY

    def notes(self) -> list[str]:
        """Return the caveats of the table."""
        if not self.is_busy:
            return []
        return [
            f"the load average was {self.load_average:.1f} at the start: another busy process "
            "slows the threads of a computation down several times"
        ]


def circumstances(start: Start) -> Mapping[str, object]:
    """Return commit, machine and versions, JSON-ready."""
    return {
        "date": start.time.isoformat(timespec="seconds"),
        **source_of(Path(__file__)),
        "cpu": cpu_name(),
        "cores": available_cores(),
        "load_average_at_start": start.load_average,
        "versions": {
            "python": platform.python_version(),
            **{name: installed_version(name) for name in _PACKAGES},
        },
    }


def source_of(file: Path) -> dict[str, object]:
    """Return the commit of a file's checkout, and whether tracked files differ from it.

    Both are None for an installed file, even inside a checkout.
    """
    is_ours = _git(file.parent, "ls-files", "--error-unmatch", file.name) is not None
    commit = _git(file.parent, "rev-parse", "HEAD") if is_ours else None
    changes = _git(file.parent, "status", "--porcelain", "--untracked-files=no") if commit else None
    return {"commit": commit, "has_local_changes": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
