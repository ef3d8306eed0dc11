"""Prompts to train on: each with a name of its own and a side of the split. No torch here."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dspark.bench.workloads.prompts import (
    NO_CATEGORY,
    Prompt,
    PromptFileError,
    parse_prompt,
    prompt_lines,
)


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """What the files held. Keys say what a prompt is, and nothing of where it stood."""

    by_key: Mapping[str, Prompt]
    num_repeated: int
    complaints: tuple[str, ...]  # of malformed lines that were skipped


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """One prompt in tokens."""

    key: str
    prompt_set: str
    token_ids: tuple[int, ...]
    is_held_out: bool


def read_training_prompts(files: Sequence[Path], *, skips_malformed: bool) -> TrainingPrompts:
    """Every prompt of the files once. A prompt set is a line's category, else the file's name.

    Raises PromptFileError for a line that is no prompt (unless those are skipped), for a file
    without any, and OSError for one that cannot be read.
    """
    by_key: dict[str, Prompt] = {}
    complaints: list[str] = []
    num_repeated = 0
    for file in files:
        for number, line in prompt_lines(file):
            try:
                prompt = parse_prompt(line, f"{file}:{number}")
            except PromptFileError as error:
                if not skips_malformed:
                    raise
                complaints.append(str(error))
                continue
            if prompt.category == NO_CATEGORY:
                prompt = replace(prompt, category=file.stem)
            key = prompt_key(prompt)
            num_repeated += key in by_key
            by_key.setdefault(key, prompt)
    return TrainingPrompts(by_key, num_repeated, tuple(complaints))


def prompt_key(prompt: Prompt) -> str:
    """A name that follows from the messages alone."""
    text = json.dumps(list(prompt.messages), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def is_held_out(key: str, *, share: float) -> bool:
    """Whether a prompt is kept for validation: fixed by its key, whatever else is in the files."""
    return int(key[:8], 16) < share * (1 << 32)


def write_prompts(file: Path, prompts: Sequence[Prompt]) -> None:
    """In the form that `dspark eval --prompts` reads; without any there is no file.

    Whole or not at all. Raises OSError when the disk is full.
    """
    if not prompts:
        file.unlink(missing_ok=True)
        return
    from draft.atomic_write import write_text  # loads torch

    lines = [
        json.dumps(
            {"category": prompt.category, "messages": list(prompt.messages)}, ensure_ascii=False
        )
        for prompt in prompts
    ]
    write_text(file, "".join(f"{line}\n" for line in lines))
