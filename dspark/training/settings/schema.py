"""Defines every setting of `dspark train` with its unit and meaning.

File, environment, flags and docs/training-settings.md follow from it.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dspark.training.config import (
    AnswersConfig,
    Count,
    FeaturesConfig,
    LearningConfig,
    OwnPromptsConfig,
    Share,
)
from server.settings.base import (
    Accepts,
    AutoOrCount,
    Section,
    Text,
)
from server.settings.names import Catalog
from server.settings.schema import HostSection, TargetSection

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
    own_prompts: OwnPromptsConfig = Field(default_factory=lambda: OwnPromptsConfig())
    answers: AnswersConfig = Field(default_factory=lambda: AnswersConfig())
    features: FeaturesConfig = Field(default_factory=lambda: FeaturesConfig())
    design: DesignSection = Field(default_factory=lambda: DesignSection())
    training: LearningConfig = Field(default_factory=lambda: LearningConfig())
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
