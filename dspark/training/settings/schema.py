"""Defines every setting of `dspark train` with its unit and meaning.

File, environment, flags and docs/training-settings.md follow from it.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from server.settings.base import (
    Accepts,
    AutoOrCount,
    FileName,
    FolderName,
    FolderOrHubId,
    Section,
    Text,
)
from server.settings.names import Catalog

Share = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
PromptFiles = Annotated[
    tuple[Text, ...],
    Accepts(
        "JSONL files, or none (data.prompts=[]) with own_prompts.count above 0: the target writes "
        "them",
        path="file",
        is_beside_config=True,
    ),
]


class TrainedModelSection(Section):
    """The target that the draft is for."""

    path: FolderOrHubId = Field(
        description="Folder or hub id of the target; demo:smollm2-135m-instruct is the demo model."
    )
    revision: Text | None = Field(None, description="Branch, tag or commit of a hub id.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Format in which the target answers and is read; auto is float32 on CPU, "
        "bfloat16 on CUDA.",
    )
    chat_template: FileName | None = Field(
        None, description="File with a Jinja chat template, instead of the target's own."
    )
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the target. Only for code you trust."
    )


class DataSection(Section):
    """What the target is asked."""

    prompts: PromptFiles = Field(
        (),
        description="JSONL files with prompt, turns or messages in each line; may be none with "
        "own_prompts.count.",
    )
    malformed_lines: Literal["refuse", "skip"] = Field(
        "refuse", description="What to do about a line that is no prompt; skipped ones are named."
    )
    max_prompts: Count | None = Field(
        None,
        description="Most prompts that are taken from the files, from their prompt sets in turn; "
        "null is all.",
    )
    max_tokens: Annotated[int, Field(ge=8)] = Field(
        1024,
        description="Longest sequence, prompt and answer; prompts that leave no room for "
        "answers.max_new_tokens are left out.",
    )
    held_out: Share = Field(
        0.05, description="Share of prompts for validation, chosen by the prompt's hash."
    )


class OwnPromptsSection(Section):
    """Prompts that the target writes itself, where its chat template lets a user speak."""

    count: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Prompts that the target writes, beside those of data.prompts; their prompt "
        "set is named own.",
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Higher is more varied, and more often nonsense."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(0.9, description="Lower is more sensible.")
    max_tokens: Count = Field(
        128, description="A prompt that has no end by then is dropped, as repeated ones are."
    )
    seed: Annotated[int, Field(ge=0)] = Field(42, description="Of these prompts' sampling.")


class AnswersSection(Section):
    """How the target answers."""

    temperatures: Annotated[tuple[Weight, ...], Field(min_length=1)] = Field(
        (0.0, 0.8), description="Each prompt is answered once at each of these; 0 is greedy."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Of sampled answers.")
    top_k: Annotated[int, Field(ge=-1)] = Field(-1, description="Of sampled answers; -1 is off.")
    max_new_tokens: Count = Field(256, description="Longest answer in tokens.")
    min_tokens: Annotated[int, Field(ge=2)] = Field(
        14, description="Shorter answers are not learned from."
    )
    concurrency: Count = Field(16, description="Answers that are made at once.")
    draft_model: FolderOrHubId | None = Field(
        None, description="A draft that makes answering faster; the answers stay the target's."
    )
    seed: Annotated[int, Field(ge=0)] = Field(42, description="Of sampled answers.")


class FeaturesSection(Section):
    """The target's hidden states over prompts and answers."""

    mode: Literal["auto", "cached", "online"] = Field(
        "auto",
        description="cached: all on disk, in bfloat16, or refused where the budget is too small; "
        "online: computed at each visit; auto: as many on disk as the budget allows, the others "
        "computed at each visit.",
    )
    disk_budget_gib: Annotated[float, Field(gt=0)] = Field(
        8.0, description="Disk that hidden states may take, in GiB."
    )


class DesignSection(Section):
    """The draft's shape. auto is what the target has."""

    block_size: Count = Field(5, description="Draft tokens in a block.")
    draft_vocab_size: Count | None = Field(
        None,
        description="Tokens that the draft can say, those most frequent in the answers; the target "
        "can say all. Null is the whole vocabulary.",
    )
    num_layers: Count = Field(2, description="Draft layers.")
    num_taps: Count = Field(5, description="Target layers that the draft reads, spread evenly.")
    tap_layers: tuple[int, ...] | None = Field(
        None, description="These layers instead; 0 is the first layer's output, -1 the embedding's."
    )
    markov_head: Literal["vanilla", "gated", "rnn", "none"] = Field(
        "vanilla", description="What corrects a slot's logits by the token before it."
    )
    markov_rank: Count = Field(64, description="Rank of that correction.")
    confidence_head: bool = Field(True, description="Learn the chance that a draft token stands.")
    intermediate_size: AutoOrCount = Field("auto", description="Width of the layers' MLP.")
    num_heads: AutoOrCount = Field("auto", description="Attention heads.")
    num_kv_heads: AutoOrCount = Field("auto", description="Key and value heads.")
    head_dim: AutoOrCount = Field("auto", description="Width of a head.")
    rope_theta: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        "auto", description="Base of the rotary embedding."
    )
    mask_token_id: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto", description="Token that stands for a mask; auto is the last one that no text holds."
    )


class StepsSection(Section):
    """The recipe."""

    start: Literal["target", "scratch", "draft"] = Field(
        "target",
        description="target: layers and final norm begin as the target's where shapes agree; "
        "scratch: random; draft: as start_draft, whose shape it takes (but design.draft_vocab_size "
        "may make its vocabulary smaller).",
    )
    start_draft: FolderName | None = Field(None, description="Folder of a draft to begin with.")
    epochs: Count = Field(4, description="Visits of each sequence.")
    max_steps: Count | None = Field(None, description="Stop after so many steps; null is all.")
    sequences_per_step: Count = Field(32, description="Sequences behind one update.")
    sequences_per_micro_batch: Count = Field(
        1, description="Sequences whose logits are in memory at once."
    )
    num_anchors: Count = Field(64, description="Blocks of each sequence at each visit, at most.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(6e-4, description="Of AdamW, at its peak.")
    warm_up: Share = Field(0.04, description="Share of all steps; a cosine to 0 follows.")
    weight_decay: Weight = Field(0.0, description="Of AdamW.")
    clip_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Largest gradient norm.")
    loss_decay: Annotated[float, Field(gt=0)] = Field(
        4.0, description="A slot at position k, from 0, weighs exp(-k / loss_decay)."
    )
    cross_entropy_weight: Weight = Field(
        0.1, description="Of the loss for the target's token, at the end."
    )
    l1_weight: Weight = Field(
        0.9, description="Of the distance to the target's distribution, at the end."
    )
    confidence_weight: Weight = Field(
        1.0, description="Of the confidence head's loss, from first to last."
    )
    first_cross_entropy_weight: Weight = Field(
        1.0, description="cross_entropy_weight at the beginning."
    )
    first_l1_weight: Weight = Field(0.1, description="l1_weight at the beginning.")
    weights_move_from: Share = Field(
        0.1, description="Share of all steps after which these two begin to change."
    )
    weights_move_until: Annotated[float, Field(ge=0, le=1)] = Field(
        0.4, description="Share of all steps after which they have their last values."
    )
    autocast: bool = Field(
        False, description="Matrix products in bfloat16; parameters and losses stay in float32."
    )
    seed: Annotated[int, Field(ge=0)] = Field(42, description="Of weights, order and anchors.")
    checkpoint_every: Count = Field(100, description="Steps between checkpoints.")
    validate_every: Count = Field(100, description="Steps between validations.")
    validation_sequences: Count = Field(128, description="Held-out sequences that are looked at.")
    export: Literal["best", "last"] = Field(
        "best", description="Which step becomes the draft: the best by held-out accept length."
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="torch.compile for the steps' forward and backward pass; auto is on with CUDA "
        "where a trial is faster. Where it fails or gives other numbers, steps run without.",
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


class TrainingDeviceSection(Section):
    """Where it runs."""

    type: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto is cuda where there is one."
    )
    num_threads: AutoOrCount = Field(
        "auto",
        description="Threads for arithmetic on CPU; auto is OMP_NUM_THREADS if set, else the cores "
        "really available.",
    )


class TrainingSettings(Section):
    """All settings of a training."""

    output: Annotated[Text, Accepts("a folder", path="output", is_beside_config=True)] = Field(
        description="Folder for answers, hidden states, checkpoints, log and the draft."
    )
    model: TrainedModelSection
    data: DataSection = Field(default_factory=lambda: DataSection())
    own_prompts: OwnPromptsSection = Field(default_factory=lambda: OwnPromptsSection())
    answers: AnswersSection = Field(default_factory=lambda: AnswersSection())
    features: FeaturesSection = Field(default_factory=lambda: FeaturesSection())
    design: DesignSection = Field(default_factory=lambda: DesignSection())
    training: StepsSection = Field(default_factory=lambda: StepsSection())
    evaluation: EvaluationSection = Field(default_factory=lambda: EvaluationSection())
    device: TrainingDeviceSection = Field(default_factory=lambda: TrainingDeviceSection())

    @model_validator(mode="after")
    def _there_are_prompts(self) -> "TrainingSettings":
        if not self.data.prompts and not self.own_prompts.count:
            raise ValueError(
                "data.prompts: found none; accepted: at least one file, or own_prompts.count above "
                "0, with which the target writes them itself"
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
