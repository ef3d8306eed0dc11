"""The README of a trained draft: what it is, what it learned from, what it is worth."""

from collections.abc import Mapping
from dataclasses import dataclass

from draft import DSparkConfig
from dspark.bench.draft_quality.accept_lengths import AcceptLengths
from dspark.training.config import AnswersConfig, OwnPromptsConfig
from dspark.training.run.recipe import Recipe
from dspark.training.run.training_loop import TrainingResult


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What a draft saw, and what it did not."""

    sets: Mapping[str, int]  # prompts by set, both sides of the split
    num_sequences: int
    num_answer_tokens: int
    num_held_out: int  # sequences
    mask_token_id: int


def model_card(
    *,
    target: str,
    fingerprint: str,
    config: DSparkConfig,
    num_parameters: int,
    recipe: Recipe,
    own_prompts: OwnPromptsConfig,
    answers: AnswersConfig,
    data: TrainingData,
    learned: TrainingResult,
    lengths: AcceptLengths | None,
) -> str:
    """README.md, as a whole."""
    temperatures = ", ".join(f"{t:g}" for t in answers.temperatures)
    sets = ", ".join(f"{name} {count}" for name, count in data.sets.items())
    words = "the target's whole vocabulary"
    if config.draft_vocab_size is not None:
        words = f"{config.draft_vocab_size} of the target's {config.vocab_size} tokens"
    markov = f"{config.markov_kind}, rank {config.markov_rank}" if config.markov_kind else "none"
    rows = {
        "target": f"{target}, fingerprint `{fingerprint}`",
        "format": "DeepSpec's own, bfloat16; embedding and head are the target's",
        "size": f"{num_parameters / 1e6:.1f} M parameters, {config.num_layers} layers",
        "block": f"{config.block_size} draft tokens; mask token {config.mask_token_id}",
        "taps": f"outputs of the target's layers {', '.join(map(str, config.tap_layers))}",
        "vocabulary": words,
        "Markov head": markov,
        "confidence head": "yes" if config.has_confidence_head else "no",
        "prompts": f"{sets} (malformed, repeated and too long ones left out)",
        **_own_prompts_row(own_prompts),
        "answers": f"by the target itself at temperature {temperatures}, at most "
        f"{answers.max_new_tokens} tokens, seed {answers.seed}",
        "trained on": f"{data.num_sequences} sequences, {data.num_answer_tokens} answer tokens",
        "held out": f"{data.num_held_out} sequences, of prompts chosen by their hash",
        "steps": f"{learned.num_steps} of {recipe.sequences_per_step} sequences, "
        f"{recipe.num_anchors} anchors each; exported: step {learned.exported_step}",
        "optimiser": f"AdamW, learning rate {recipe.learning_rate:g}, seed {recipe.seed}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""# DSpark draft for {target}

Made by `dspark train`.

| | |
|---|---|
{table}

## Worth

{_validation(learned)}

{_lengths(lengths)}
"""


def _own_prompts_row(own: OwnPromptsConfig) -> Mapping[str, str]:
    """Nothing if the target wrote none."""
    if not own.count:
        return {}
    how = f"temperature {own.temperature:g}, top_p {own.top_p:g}, at most {own.max_tokens} tokens"
    said = f"{own.count}, written by the target where its chat template lets a user speak, at {how}"
    return {"own prompts": f"{said}, seed {own.seed}"}


def _validation(learned: TrainingResult) -> str:
    found = learned.validation
    if found is None:
        return "No prompts were held out."
    chances = ", ".join(f"{chance:.3f}" for chance in found.acceptance)
    return (
        "On held-out sequences, at temperature 1 and after the true tokens: expected accept "
        f"length {found.accept_length:.3f}; acceptance by position {chances}."
    )


def _lengths(lengths: AcceptLengths | None) -> str:
    if lengths is None:
        return "Accept lengths in the engine: not measured (`dspark eval` does it)."
    lines = ["Accept length in the engine, bonus token included, on held-out prompts:", ""]
    lines += ["| prompt set | temperature | prompts | accept length |", "|---|---|---|---|"]
    lines += [
        f"| {r.prompt_set} | {r.temperature:g} | {r.num_prompts} | {r.accept_length:.2f} |"
        for r in lengths.results
    ]
    return "\n".join(lines)
