"""Defines the configuration of a training; fields mean the settings of the same name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.config import Device, DType

Start = Literal["scratch", "target", "draft"]
FeatureMode = Literal["auto", "cached", "online"]


@dataclass(frozen=True, slots=True)
class AnswersConfig:
    """How the target answers the prompts."""

    temperatures: tuple[float, ...] = (0.0, 0.8)  # one answer per prompt and temperature
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 256
    min_tokens: int = 14  # shorter answers are left out
    concurrency: int = 16
    draft_model: str | None = None
    seed: int = 42


@dataclass(frozen=True, slots=True)
class OwnPromptsConfig:
    """How the target generates prompts."""

    count: int = 0
    temperature: float = 1.0
    top_p: float = 0.9
    max_tokens: int = 128
    seed: int = 42


@dataclass(frozen=True, slots=True)
class FeaturesConfig:
    """Where hidden states are stored."""

    mode: FeatureMode = "auto"
    disk_budget_gib: float = 8.0


@dataclass(frozen=True, slots=True)
class DesignConfig:
    """The shape of the draft; None means the value of the target."""

    block_size: int = 5
    draft_vocab_size: int | None = None  # None: the target's whole vocabulary
    num_layers: int = 2
    num_taps: int = 5
    tap_layers: tuple[int, ...] | None = None
    markov_head: Literal["vanilla", "gated", "rnn", "none"] = "vanilla"
    markov_rank: int = 64
    confidence_head: bool = True
    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float | None = None
    mask_token_id: int | None = None  # None: the last id that no training text contains


@dataclass(frozen=True, slots=True)
class LearningConfig:
    """Start, validation, checkpoints and export of a training."""

    start: Start = "target"
    start_draft: str | None = None
    checkpoint_every: int = 100  # steps
    validate_every: int = 100
    validation_sequences: int = 128
    export: Literal["best", "last"] = "best"
    compile: Literal["auto", "on", "off"] = "auto"  # auto: on with CUDA where it helps


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """All parts of the configuration."""

    target: str  # folder or hub id
    output: Path
    target_name: str | None = None  # in the model card; None: the folder's
    revision: str | None = None
    dtype: DType = "auto"
    device: Device = "auto"
    num_threads: int | None = None
    trust_remote_code: bool = False
    max_tokens: int = 1024  # longest sequence, prompt and answer
    own_prompts: OwnPromptsConfig = field(default_factory=OwnPromptsConfig)
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    design: DesignConfig = field(default_factory=DesignConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    recipe: Mapping[str, Any] = field(default_factory=dict)  # fields of Recipe
    evaluation_prompts: int = 8  # per set, greedy and sampled, for the model card; 0: none
