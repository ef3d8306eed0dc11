"""Reads training prompts and assigns them to the training or held-out split. Loads no torch."""

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
    """The prompts of all files, by a hash of their messages."""

    by_key: Mapping[str, Prompt]
    num_repeated: int
    complaints: tuple[str, ...]  # about malformed lines that were skipped


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """One prompt as token ids."""

    key: str
    prompt_set: str
    token_ids: tuple[int, ...]
    is_held_out: bool


def read_training_prompts(files: Sequence[Path], *, skips_malformed: bool) -> TrainingPrompts:
    """Read every prompt of the files once; its set is the category or else the file's name.

    Raises PromptFileError for an invalid line, unless those are skipped, and for a file without
    prompts. Raises OSError for an unreadable file.
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
    """Hash the messages of a prompt."""
    text = json.dumps(list(prompt.messages), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def is_held_out(key: str, *, share: float) -> bool:
    """Whether a prompt is held out; depends only on its key and the share."""
    return int(key[:8], 16) < share * (1 << 32)


def write_prompts(file: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts for `dspark eval --prompts` atomically; remove the file without any.

    Raises OSError if the disk is full.
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
