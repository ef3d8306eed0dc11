"""Reads a draft's config.json and dispatches to the reader of its checkpoint format."""

import json
from pathlib import Path

from draft.checkpoint.deepspec import read_deepspec
from draft.checkpoint.fields import Fields
from draft.checkpoint.speculators import read_speculators
from draft.config import DSparkConfig, TargetFacts
from draft.errors import DraftLoadError


def read_config(folder: Path, *, target: TargetFacts) -> DSparkConfig:
    """Read a draft's config.json and check it against the target.

    Raises DraftLoadError: one line naming field, found and accepted.
    """
    values = read_json(folder / "config.json")
    if values.get("speculators_model_type") is not None:
        return read_speculators(values, target=target)
    return read_deepspec(Fields(values), target=target)


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object from a file of the checkpoint. Raises DraftLoadError."""
    accepted = f"a JSON object in {path.parent}"
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise DraftLoadError(path.name, found=None, accepted=accepted) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DraftLoadError(path.name, found=error, accepted=accepted) from error
    if not isinstance(found, dict):
        raise DraftLoadError(path.name, found=type(found).__name__, accepted=accepted)
    return found
