"""Files, and lines of files, that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MODE = 0o644


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Within the block write to the path that it gives; afterwards that is the file at `path`.

    Others may read it. A full disk, an error or an interruption leaves neither a half-written file
    nor a partial one.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _naming(path):
            yield partial
            partial.chmod(_MODE)  # safetensors and torch may have their own ideas
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(text.rstrip() + "\n", encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a file, on the disk when this returns.

    Raises OSError when the disk is full; what was there before stays, and nothing of the line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size if path.exists() else 0
    try:
        with _naming(path), path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if path.exists():
            os.truncate(path, size)
        raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """An error of a write names no file by itself."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
