"""Defines the configuration of a training; fields mean the settings of the same name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.config import Device, DType
from server.settings.base import FolderName, FolderOrHubId, Section

Share = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class OwnPromptsConfig(Section):
    """Prompts that the target generates from the start of a user's turn in its chat template."""

    count: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Prompts that the target generates, in addition to data.prompts; their prompt "
        "set is named own.",
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Sampling temperature; higher is more varied."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="top_p of sampling; lower is less varied."
    )
    max_tokens: Count = Field(
        128, description="Longest prompt in tokens; unfinished and repeated prompts are dropped."
    )
    seed: Annotated[int, Field(ge=0)] = Field(42, description="Seed of sampling.")


class AnswersConfig(Section):
    """The target's answers to the prompts."""

    temperatures: Annotated[tuple[Weight, ...], Field(min_length=1)] = Field(
        (0.0, 0.8),
        description="Temperatures: each prompt is answered once at each of them; 0 is greedy.",
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="top_p of sampled answers.")
    top_k: Annotated[int, Field(ge=-1)] = Field(
        -1, description="top_k of sampled answers; -1 is off."
    )
    max_new_tokens: Count = Field(256, description="Longest answer in tokens.")
    min_tokens: Annotated[int, Field(ge=2)] = Field(
        14, description="Shortest answer that is used for training, in tokens."
    )
    concurrency: Count = Field(16, description="Answers that are generated at a time.")
    draft_model: FolderOrHubId | None = Field(
        None, description="Draft that speeds the answers up; they stay the target's."
    )
    seed: Annotated[int, Field(ge=0)] = Field(42, description="Seed of sampled answers.")


class FeaturesConfig(Section):
    """The target's hidden states of prompts and answers."""

    mode: Literal["auto", "cached", "online"] = Field(
        "auto",
        description="cached: all on disk, in bfloat16; refused if the budget is too small. "
        "online: computed at each visit. auto: as many on disk as the budget allows, the others "
        "computed at each visit.",
    )
    disk_budget_gib: Annotated[float, Field(gt=0)] = Field(
        8.0, description="Most disk space for hidden states, in GiB."
    )


class LearningConfig(Section):
    """The optimisation steps."""

    start: Literal["auto", "target", "scratch", "draft"] = Field(
        "auto",
        description="target: layers and final norm start as the target's where shapes agree; "
        "scratch: random; auto: the better of both after a few steps; draft: start_draft, with its "
        "shape (design.draft_vocab_size may reduce its vocabulary).",
    )
    start_draft: FolderName | None = Field(None, description="Folder of a draft to start from.")
    epochs: Count = Field(4, description="Passes over all sequences.")
    max_steps: Count | None = Field(None, description="Most steps; null is all.")
    sequences_per_step: Count = Field(32, description="Sequences in one optimiser step.")
    sequences_per_micro_batch: Count = Field(
        1, description="Sequences whose logits are in memory at once."
    )
    num_anchors: Count = Field(64, description="Most blocks of a sequence in each epoch.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        6e-4, description="Peak learning rate of AdamW."
    )
    warm_up: Share = Field(
        0.04,
        description="Fraction of all steps with a rising learning rate; a cosine to 0 follows.",
    )
    weight_decay: Weight = Field(0.0, description="Weight decay of AdamW.")
    clip_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Largest gradient norm.")
    loss_decay: Annotated[float, Field(gt=0)] = Field(
        4.0, description="The weight of draft position k, from 0, is exp(-k / loss_decay)."
    )
    cross_entropy_weight: Weight = Field(
        0.1, description="Final weight of the loss for the target's token."
    )
    l1_weight: Weight = Field(
        0.9, description="Final weight of the distance to the target's distribution."
    )
    confidence_weight: Weight = Field(
        1.0, description="Weight of the confidence head's loss, at all steps."
    )
    first_cross_entropy_weight: Weight = Field(
        1.0, description="cross_entropy_weight at the first step."
    )
    first_l1_weight: Weight = Field(0.1, description="l1_weight at the first step.")
    weights_move_from: Share = Field(
        0.1, description="Fraction of all steps after which these two weights start to change."
    )
    weights_move_until: Annotated[float, Field(ge=0, le=1)] = Field(
        0.4, description="Fraction of all steps after which they have their final values."
    )
    autocast: bool = Field(
        False, description="Matrix products in bfloat16; parameters and losses stay in float32."
    )
    seed: Annotated[int, Field(ge=0)] = Field(42, description="Seed of weights, order and anchors.")
    checkpoint_every: Count = Field(100, description="Steps between checkpoints.")
    validate_every: Count = Field(100, description="Steps between validations.")
    validation_sequences: Count = Field(128, description="Most held-out sequences in a validation.")
    export: Literal["best", "last"] = Field(
        "best", description="Exported step: the best by held-out accept length, or the last."
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="torch.compile for the steps' forward and backward pass; auto is on with CUDA "
        "if a trial is faster. If it fails or gives other numbers, steps run without it.",
    )

    @model_validator(mode="after")
    def _a_start_has_a_draft(self) -> "LearningConfig":
        if (self.start == "draft") != (self.start_draft is not None):
            raise ValueError(
                "training.start and training.start_draft do not go together; accepted: start "
                "draft with the folder of a draft, or neither"
            )
        return self


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
