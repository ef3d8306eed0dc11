"""Makes a model's folder in the cache once: complete, or absent.

cache_dir/
    NAME/             complete, or absent
    .partial-*/       files of a run; the next one removes those of a killed run
    .lock             held while a folder is made
"""

import fcntl
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dspark.gguf.progress import Progress
from engine.errors import LoadError, os_error_text

# (work folder, folder to fill, progress)
Make = Callable[[Path, Path, Progress], None]


@dataclass(frozen=True, slots=True)
class CachedFolder:
    """A folder of the cache, named by what it holds."""

    cache_dir: Path
    name: str  # may have parents
    files: tuple[str, ...]  # all of them exist in a complete folder
    subject: str  # in messages, as in "the demo target"
    modules: Sequence[str]  # that making it needs
    mib: int = 0  # of disk space while it is made; 0: unknown

    def find(self) -> Path | None:
        """Return the complete folder; None if it is not made yet."""
        folder = self.cache_dir / self.name
        return folder if all((folder / name).is_file() for name in self.files) else None

    def ensure(self, make: Make, progress: Progress) -> Path:
        """Return the folder; make it if the cache has none.

        Several processes may call this at once: one makes the folder, the others wait. A killed
        run never leaves an incomplete folder. Raises LoadError: a missing package, disk full, and
        what `make` raises.
        """
        try:
            found = self.find()
            if found is not None:
                return found
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            with self._locked(progress):
                found = self.find()
                if found is not None:
                    return found
                self._remove_leftovers()
                self._require_modules()
                self._require_space()
                return self._make(make, progress)
        except OSError as error:
            text = os_error_text(error)
            raise LoadError(f"cannot make {self.subject} in {self.cache_dir}: {text}") from error

    def _make(self, make: Make, progress: Progress) -> Path:
        """Fill a folder below a work folder; the final rename publishes the result."""
        work = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.cache_dir))
        folder = self.cache_dir / self.name
        try:
            made = work / "made"
            made.mkdir()
            make(work, made, progress)
            folder.parent.mkdir(exist_ok=True)
            made.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        result = self.find()
        assert result is not None, f"{folder} lacks some of {self.files}"
        return result

    @contextmanager
    def _locked(self, progress: Progress) -> Iterator[None]:
        """Hold the cache's lock; the system releases it even if the process is killed."""
        with (self.cache_dir / ".lock").open("w") as lock:
            is_waiting = False
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not is_waiting:
                        progress.start(
                            f"waiting for another process that makes {self.subject}", total=None
                        )
                        is_waiting = True
                    progress.update(0)
                    time.sleep(0.2)
            yield

    def _remove_leftovers(self) -> None:
        """Remove the files of killed runs and an incomplete folder. The caller holds the lock."""
        for partial in self.cache_dir.glob(".partial-*"):
            shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(self.cache_dir / self.name, ignore_errors=True)

    def _require_modules(self) -> None:
        missing = [name for name in self.modules if importlib.util.find_spec(name) is None]
        if missing:
            raise LoadError(
                f"{self.subject} needs {' and '.join(missing)} once: pip install "
                f"{' '.join(missing)}"
            )

    def _require_space(self) -> None:
        free_mib = shutil.disk_usage(self.cache_dir).free >> 20
        if free_mib < self.mib:
            raise LoadError(
                f"{self.cache_dir}: found {free_mib} MiB free, {self.subject} needs {self.mib} "
                "MiB while it is made; set DSPARK_CACHE to a folder with more space"
            )
