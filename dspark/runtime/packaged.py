"""Finds the configs and the draft that come with the project, in a checkout or as installed."""

from pathlib import Path

from server.settings.model_sources import DEMO_TARGET
from server.settings.schema import SettingsError

_CONFIGS = Path(__file__).parents[1] / "configs"
DEMO_DRAFT = Path(__file__).parents[2] / "draft" / "pretrained" / DEMO_TARGET


def packaged_configs() -> list[str]:
    """List the names of the packaged configs."""
    names = sorted(file.stem for file in _CONFIGS.glob("*.yaml"))
    return [name for name in names if not name.startswith("train-")]  # those of a checkout


def find_config(name: str | Path) -> Path:
    """Return the file that a config's path or packaged name stands for; an existing path wins.

    Raises SettingsError for a plain name that is neither. A missing path is left to the reader.
    """
    path = Path(name)
    if path.is_file() or path.name != str(path) or path.suffix:
        return path
    packaged = packaged_configs()
    if path.name in packaged:
        return _CONFIGS / f"{path.name}.yaml"
    raise SettingsError(
        f"config {path}: found no such file; accepted: a file, or one of the packaged configs "
        f"{', '.join(packaged)}"
    )
