"""A training's folder goes on with the settings that it was begun with, or says which differ."""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from dspark.bench.workloads.prompts import Prompt
from dspark.training.data.prompts import prompt_key
from dspark.training.run.begun_config import StoredSettings
from dspark.training.settings.loading import FIELDS
from dspark.training.settings.schema import TrainingSettings
from server.settings.schema import SettingsError

logger = logging.getLogger(__name__)

# What another value changes nothing of that a draft learns from, or only where it comes from: the
# target is known by its fingerprint, files by their prompts.
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
    """What the steps of a training depend on, by its dotted name.

    prompts: of the files, in order. chat_template: its text; None if nobody has read it yet.
    """
    found: dict[str, object] = {}
    keys = [prompt_key(prompt) for prompt in prompts]
    found["data.prompts"] = f"{len(keys)} after data.max_prompts, of hash {_hash(keys)}"
    if chat_template is not None:
        found["model.chat_template"] = f"one of hash {_hash(chat_template)}"
    values = settings.model_dump(mode="json")
    for path in FIELDS:
        section, _, name = path.rpartition(".")
        if not path.startswith(_FREE) and not _is_idle(path, settings):
            found[path] = values[section][name]
    return found


def refuse_another_training(output: Path, asked: dict[str, object]) -> None:
    """Raises SettingsError, a line for each setting, if steps were taken with others than asked."""
    begun = StoredSettings(output)
    changes = begun.changes(asked)
    if begun.have_steps and changes:
        raise SettingsError(
            *(
                f"{c.name}: found {_told(c.found)} in {begun.path}, and asked for is "
                f"{_told(c.asked)}"
                for c in changes
            ),
            f"output: {output} holds a training that was begun with other settings; accepted: "
            f"those found there, another output folder, or this one without {output}/checkpoints, "
            "where steps begin anew and answers are kept that are still asked for",
        )


def begin(output: Path, asked: dict[str, object]) -> None:
    """Write down what is asked for, unless steps were taken with it; tell what that changes."""
    begun = StoredSettings(output)
    if begun.have_steps:
        return
    for c in begun.changes(asked):
        logger.warning(
            "%s: %s is now %s; no step was taken yet", c.name, _told(c.found), _told(c.asked)
        )
    begun.write(asked)


def _told(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_idle(path: str, settings: TrainingSettings) -> bool:
    """Whether another setting makes this one of no account."""
    if path.startswith("own_prompts.") and path != "own_prompts.count":
        return not settings.own_prompts.count
    if path.startswith("design.") and path != "design.draft_vocab_size":
        return settings.training.start == "draft"
    return False


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
