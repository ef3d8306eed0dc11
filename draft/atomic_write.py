"""Writes files and lines atomically: completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MODE = 0o644


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to `path` on success.

    The file becomes readable by all users. A full disk, an error or an interruption leaves no
    partial file.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _naming(path):
            yield partial
            partial.chmod(_MODE)  # safetensors and torch may have set another mode
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, with one newline at its end."""
    with whole_file(path) as partial:
        partial.write_text(text.rstrip() + "\n", encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and flush it to disk.

    Raises OSError when the disk is full; the file then keeps its earlier content.
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
    """Add the path to an OSError that names no file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
