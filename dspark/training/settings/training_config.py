"""Converts the settings of a training to what its run takes."""

from pathlib import Path
from typing import Any

from dspark.runtime.packaged import DEMO_DRAFT
from dspark.training.config import DesignConfig, TrainingConfig
from dspark.training.settings.schema import TrainingSettings
from server.settings.engine_config import count_or_none
from server.settings.model_sources import DEMO_NAME

_NO_RECIPE = {
    "start",
    "start_draft",
    "checkpoint_every",
    "validate_every",
    "validation_sequences",
    "export",
    "compile",
}


def to_training_config(settings: TrainingSettings, *, target: str) -> TrainingConfig:
    """Convert settings. `target` is the folder or hub id that `model.path` resolves to."""
    model, data, device = settings.model, settings.data, settings.device
    design: dict[str, Any] = {
        name: None if value == "auto" else value
        for name, value in settings.design.model_dump().items()
    }
    answers = settings.answers
    if answers.draft_model == DEMO_NAME:
        answers = answers.model_copy(update={"draft_model": str(DEMO_DRAFT)})
    return TrainingConfig(
        target=target,
        target_name=model.path,
        output=Path(settings.output),
        revision=model.revision,
        dtype=model.dtype,
        device=device.type,
        num_threads=count_or_none(device.num_threads),
        trust_remote_code=model.trust_remote_code,
        max_tokens=data.max_tokens,
        own_prompts=settings.own_prompts,
        answers=answers,
        features=settings.features,
        design=DesignConfig(**design),
        learning=settings.training,
        recipe=settings.training.model_dump(exclude=_NO_RECIPE),
        evaluation_prompts=settings.evaluation.prompts_per_set,
    )
