"""Keeps GGUF files as Hugging Face folders in the cache, each converted once."""

import hashlib
import re
import sys
from pathlib import Path

from dspark.gguf.cached_folder import CachedFolder
from dspark.gguf.child_process import ChildFailed, run_child
from dspark.gguf.progress import Progress
from engine.errors import LoadError
from server.settings.base import shown

MODULES = ("gguf", "accelerate")
_CONVERTER = Path(__file__).with_name("convert.py")
_VERSION = "v1"  # raise the number when the conversion changes
_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_MAGIC = b"GGUF"
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def cached_gguf_target(file: Path, cache_dir: Path) -> Path | None:
    """Return the folder that a GGUF file was converted to; None if it was not yet."""
    return _folder_of(file, cache_dir).find()


def ensure_gguf_target(file: Path, *, cache_dir: Path, progress: Progress) -> Path:
    """Return the folder of a GGUF file; convert it if the cache has none.

    Raises LoadError: no GGUF file, an architecture that transformers cannot read, disk full.
    """
    _check(file)

    def make(work: Path, folder: Path, progress: Progress) -> None:
        convert_gguf(file, folder, progress)

    return _folder_of(file, cache_dir).ensure(make, progress)


def convert_gguf(gguf: Path, folder: Path, progress: Progress) -> None:
    """Save `gguf` as a Hugging Face folder, in a separate process. Raises LoadError."""
    progress.start(f"converting {gguf.name} to float32 safetensors, once", total=None)
    command = [sys.executable, "-P", str(_CONVERTER), str(gguf), str(folder)]
    try:
        run_child(command, tick=lambda: progress.update(0))
    except ChildFailed as error:
        raise LoadError(f"cannot convert {gguf.name}: {error}") from error


def _folder_of(file: Path, cache_dir: Path) -> CachedFolder:
    """Name the folder by the file's path, size and time: a changed file is another model."""
    full = file.resolve()
    try:
        found = full.stat()
    except OSError as error:
        raise LoadError(f"model.path: cannot read {file}: {error.strerror}") from error
    key = f"{full}:{found.st_size}:{found.st_mtime_ns}".encode()
    name = f"gguf/{file.stem}-{hashlib.sha256(key).hexdigest()[:12]}-{_VERSION}"
    return CachedFolder(cache_dir, name, _FILES, f"the model of {file.name}", MODULES)


def _check(file: Path) -> None:
    """Raise LoadError for a file that is no whole GGUF file."""
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(_MAGIC))
    except OSError as error:
        raise LoadError(f"model.path: cannot read {file}: {error.strerror}") from error
    if magic != _MAGIC:
        raise LoadError(
            f"model.path: {file} begins with {shown(repr(magic))}; accepted: a GGUF file, which "
            f"begins with {_MAGIC!r}"
        )
    if _PART.search(file.name):
        raise LoadError(
            f"model.path: found {file.name}, a part of a split model; accepted: one file "
            "(llama-gguf-split --merge joins the parts)"
        )
