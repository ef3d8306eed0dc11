"""Lists and reads a checkpoint folder's tensors: one safetensors file, or an index and shards."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from draft.checkpoint.reading import read_json
from draft.errors import DraftLoadError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Describes a stored tensor: its file, and shape and dtype from the header."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it: F32, BF16, ...


def list_tensors(folder: Path) -> dict[str, StoredTensor]:
    """List every tensor of the checkpoint by name, from headers only.

    Raises DraftLoadError for files that are missing or broken, and for a name in two files.
    """
    stored: dict[str, StoredTensor] = {}
    for file in _files(folder):
        for name, tensor in _header(file):
            if name in stored:
                wanted = f"one copy, not a second one in {file.name}"
                raise DraftLoadError(name, found=stored[name].file.name, accepted=wanted)
            stored[name] = tensor
    return stored


def read_tensors(stored: Mapping[str, StoredTensor]) -> Iterable[tuple[str, Tensor]]:
    """Load the tensors, file by file."""
    for path in sorted({tensor.file for tensor in stored.values()}):
        with safe_open(path, framework="pt") as file:
            for name in (n for n, tensor in stored.items() if tensor.file == path):
                yield name, file.get_tensor(name)


def _files(folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if not (folder / _INDEX).is_file():
        raise DraftLoadError(_SINGLE, found=None, accepted=f"it or {_INDEX} in {folder}")
    shards = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise DraftLoadError(f"{_INDEX} weight_map", found=shards, accepted="names and files")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if Path(name).name != name:
            raise DraftLoadError(f"{_INDEX} weight_map", found=name, accepted="a plain file name")
    return [folder / name for name in names]


def _header(path: Path) -> list[tuple[str, StoredTensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            parts = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118
            return [
                (name, StoredTensor(path, tuple(part.get_shape()), part.get_dtype()))
                for name, part in parts
            ]
    except (OSError, SafetensorError) as error:
        found = None if isinstance(error, FileNotFoundError) else error
        wanted = f"a safetensors file in {path.parent}"
        raise DraftLoadError(path.name, found=found, accepted=wanted) from error
