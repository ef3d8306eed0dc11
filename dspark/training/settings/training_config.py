"""Converts the settings of a training to what its run takes."""

from pathlib import Path
from typing import Any

from dspark.runtime.packaged import DEMO_DRAFT
from dspark.training.config import (
    AnswersConfig,
    DesignConfig,
    FeaturesConfig,
    LearningConfig,
    OwnPromptsConfig,
    TrainingConfig,
)
from dspark.training.settings.schema import TrainingSettings
from server.settings.engine_config import count_or_none
from server.settings.model_sources import DEMO_NAME

_LEARNING = (
    "start",
    "start_draft",
    "checkpoint_every",
    "validate_every",
    "validation_sequences",
    "export",
    "compile",
)


def to_training_config(settings: TrainingSettings, *, target: str) -> TrainingConfig:
    """Convert settings. `target` is the folder or hub id that `model.path` resolves to."""
    model, data, device = settings.model, settings.data, settings.device
    design: dict[str, Any] = {
        name: None if value == "auto" else value
        for name, value in settings.design.model_dump().items()
    }
    steps = settings.training.model_dump()
    answers = settings.answers.model_dump()
    if answers["draft_model"] == DEMO_NAME:
        answers["draft_model"] = str(DEMO_DRAFT)
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
        own_prompts=OwnPromptsConfig(**settings.own_prompts.model_dump()),
        answers=AnswersConfig(**answers),
        features=FeaturesConfig(**settings.features.model_dump()),
        design=DesignConfig(**design),
        learning=LearningConfig(**{name: steps[name] for name in _LEARNING}),
        recipe={name: value for name, value in steps.items() if name not in _LEARNING},
        evaluation_prompts=settings.evaluation.prompts_per_set,
    )
