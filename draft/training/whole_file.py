"""Files that are there whole or not at all."""

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
        yield partial
        partial.chmod(_MODE)  # safetensors and torch may have their own ideas
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
