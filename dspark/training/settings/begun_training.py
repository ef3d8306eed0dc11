"""Compares the settings of a training with those that its output folder was begun with."""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dspark.bench.workloads.prompts import Prompt
from dspark.training.data.prompts import prompt_key
from dspark.training.run.stored_settings import StoredSettings
from dspark.training.settings.schema import TRAINING, TrainingSettings
from server.settings.schema import SettingsError

logger = logging.getLogger(__name__)

# Settings without influence on what a draft learns, or whose influence is compared otherwise: the
# target by its fingerprint, files by their prompts.
_FREE = (
    "output",
    "model.",
    "data.prompts",
    "data.malformed_lines",
    "data.max_prompts",
    "answers.concurrency",
    "answers.draft_model",
    "features.",
    "training.checkpoint_every",
    "training.validate_every",
    "training.validation_sequences",
    "training.export",
    "training.compile",
    "evaluation.",
    "device.",
)


def decisive_settings(
    settings: TrainingSettings, prompts: Sequence[Prompt], *, chat_template: str | None
) -> dict[str, object]:
    """Collect the settings that a training's steps depend on, by dotted name.

    prompts: of the files, in order. chat_template: its text; None if it was not read yet.
    """
    found: dict[str, object] = {}
    keys = [prompt_key(prompt) for prompt in prompts]
    found["data.prompts"] = f"{len(keys)} after data.max_prompts, of hash {_hash(keys)}"
    if chat_template is not None:
        found["model.chat_template"] = f"one of hash {_hash(chat_template)}"
    values = settings.model_dump(mode="json")
    for path in TRAINING.settings:
        section, _, name = path.rpartition(".")
        if not path.startswith(_FREE) and not _is_idle(path, settings):
            found[path] = values[section][name]
    return found


def refuse_another_training(output: Path, asked: dict[str, object]) -> None:
    """Compare with the settings that steps were taken with.

    Raises SettingsError with a line for each setting that differs.
    """
    begun = StoredSettings(output)
    changes = begun.changes(asked)
    if begun.have_steps and changes:
        raise SettingsError(
            *(
                f"{c.name}: found {_text(c.requested)}; accepted: {_text(c.found)}, as in "
                f"{begun.path}"
                for c in changes
            ),
            f"output: {output} holds a training with other settings; accepted: its settings, "
            f"another output folder, or this one without {output}/checkpoints, where training "
            "restarts at the first step and reuses the answers that still apply",
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder of a training. Raises SettingsError while another process trains there."""
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"output: found {folder}, in which another training runs; accepted: another folder"
            ) from None
        yield
    finally:
        os.close(place)


def begin(output: Path, asked: dict[str, object]) -> None:
    """Write the settings to the output folder unless steps were taken, and log what changes."""
    begun = StoredSettings(output)
    if begun.have_steps:
        return
    for c in begun.changes(asked):
        logger.warning(
            "%s: %s is now %s; no step was taken yet", c.name, _text(c.found), _text(c.requested)
        )
    begun.write(asked)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_idle(path: str, settings: TrainingSettings) -> bool:
    """Whether another setting makes this one irrelevant."""
    if path.startswith("own_prompts.") and path != "own_prompts.count":
        return not settings.own_prompts.count
    if path.startswith("design.") and path != "design.draft_vocab_size":
        return settings.training.start == "draft"
    return False


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
