"""Defines every setting of `dspark train` with its unit and meaning.

File, environment, flags and docs/training-settings.md follow from it.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from server.settings.base import (
    Accepts,
    AutoOrCount,
    FolderName,
    FolderOrHubId,
    Section,
    Text,
)
from server.settings.names import Catalog
from server.settings.schema import HostSection, TargetSection

Share = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
PromptFiles = Annotated[
    tuple[Text, ...],
    Accepts(
        "JSONL files, or none (data.prompts=[]) with own_prompts.count above 0: the target "
        "generates them",
        path="file",
        is_beside_config=True,
    ),
]


class DataSection(Section):
    """Prompts and the split into training and validation."""

    prompts: PromptFiles = Field(
        (),
        description="JSONL files with prompt, turns or messages in each line; none is accepted "
        "with own_prompts.count.",
    )
    malformed_lines: Literal["refuse", "skip"] = Field(
        "refuse",
        description="What to do with a line that is no prompt; skipped lines are reported.",
    )
    max_prompts: Count | None = Field(
        None,
        description="Most prompts from the files, taken from their prompt sets in turn; null is "
        "all.",
    )
    max_tokens: Annotated[int, Field(ge=8)] = Field(
        1024,
        description="Longest sequence in tokens, prompt and answer together; prompts without room "
        "for answers.max_new_tokens are omitted.",
    )
    held_out: Share = Field(
        0.05, description="Fraction of prompts for validation, chosen by the prompt's hash."
    )


class OwnPromptsSection(Section):
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


class AnswersSection(Section):
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


class FeaturesSection(Section):
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


class DesignSection(Section):
    """The draft's shape. auto is the target's value."""

    block_size: Count = Field(5, description="Draft tokens in a block.")
    draft_vocab_size: Count | None = Field(
        None,
        description="Vocabulary of the draft: the tokens that are most frequent in the answers. "
        "Null is the target's whole vocabulary.",
    )
    num_layers: Count = Field(2, description="Draft layers.")
    num_taps: Count = Field(
        5, description="Number of target layers that the draft reads, evenly spaced."
    )
    tap_layers: tuple[int, ...] | None = Field(
        None,
        description="These layers, in place of num_taps; 0 is the first layer's output, -1 the "
        "embedding's.",
    )
    markov_head: Literal["vanilla", "gated", "rnn", "none"] = Field(
        "vanilla",
        description="Head that corrects the logits of a draft position by the previous token.",
    )
    markov_rank: Count = Field(64, description="Rank of that correction.")
    confidence_head: bool = Field(
        True, description="Train a head for the probability that a draft token is accepted."
    )
    intermediate_size: AutoOrCount = Field("auto", description="Width of the layers' MLP.")
    num_heads: AutoOrCount = Field("auto", description="Attention heads.")
    num_kv_heads: AutoOrCount = Field("auto", description="Key and value heads.")
    head_dim: AutoOrCount = Field("auto", description="Width of a head.")
    rope_theta: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        "auto", description="Base of the rotary embedding."
    )
    mask_token_id: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto",
        description="Id of the mask token; auto is the last id that no training text contains.",
    )


class StepsSection(Section):
    """The optimisation steps."""

    start: Literal["target", "scratch", "draft"] = Field(
        "target",
        description="target: layers and final norm start as the target's where shapes agree; "
        "scratch: random; draft: start_draft, with its shape (design.draft_vocab_size may reduce "
        "its vocabulary).",
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
    def _a_start_has_a_draft(self) -> "StepsSection":
        if (self.start == "draft") != (self.start_draft is not None):
            raise ValueError(
                "training.start and training.start_draft do not go together; accepted: start "
                "draft with the folder of a draft, or neither"
            )
        return self


class EvaluationSection(Section):
    """Accept lengths for the model card."""

    prompts_per_set: Annotated[int, Field(ge=0)] = Field(
        8, description="Held-out prompts of each set, greedy and at temperature 1; 0 is none."
    )


class TrainingSettings(Section):
    """All settings of a training."""

    output: Annotated[Text, Accepts("a folder", path="output", is_beside_config=True)] = Field(
        description="Folder for answers, hidden states, checkpoints, log and the draft."
    )
    model: TargetSection
    data: DataSection = Field(default_factory=lambda: DataSection())
    own_prompts: OwnPromptsSection = Field(default_factory=lambda: OwnPromptsSection())
    answers: AnswersSection = Field(default_factory=lambda: AnswersSection())
    features: FeaturesSection = Field(default_factory=lambda: FeaturesSection())
    design: DesignSection = Field(default_factory=lambda: DesignSection())
    training: StepsSection = Field(default_factory=lambda: StepsSection())
    evaluation: EvaluationSection = Field(default_factory=lambda: EvaluationSection())
    device: HostSection = Field(default_factory=lambda: HostSection())

    @model_validator(mode="after")
    def _there_are_prompts(self) -> "TrainingSettings":
        if not self.data.prompts and not self.own_prompts.count:
            raise ValueError(
                "data.prompts: found none; accepted: at least one file, or own_prompts.count above "
                "0, with which the target generates them"
            )
        return self

    @model_validator(mode="after")
    def _an_answer_has_room(self) -> "TrainingSettings":
        if self.answers.max_new_tokens >= self.data.max_tokens:
            raise ValueError(
                f"answers.max_new_tokens: found {self.answers.max_new_tokens}; accepted: less than "
                f"data.max_tokens, which is {self.data.max_tokens}"
            )
        if self.answers.min_tokens > self.answers.max_new_tokens:
            raise ValueError(
                f"answers.min_tokens: found {self.answers.min_tokens}; accepted: at most "
                f"answers.max_new_tokens, which is {self.answers.max_new_tokens}"
            )
        return self


TRAINING = Catalog(
    TrainingSettings, env_prefix="DSPARK_TRAIN__", reference="docs/training-settings.md"
)
