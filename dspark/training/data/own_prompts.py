"""Collects prompts that the target generates itself, each once. Loads no torch.

After the opening of a user's turn, an instruct model continues with a prompt like those of its
training (Xu et al. 2024, "Magpie").
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from dspark.bench.workloads.prompts import Prompt
from dspark.training.config import OwnPromptsConfig
from dspark.training.data.jsonl_file import JsonLinesFile
from engine.errors import LoadError

PROMPT_SET = "own"
_ATTEMPTS_PER_PROMPT = 3
_EXTRA_ATTEMPTS = 64


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The opening and the end of a user's turn in a chat template, as token ids."""

    opening_ids: tuple[int, ...]
    end_ids: frozenset[int]  # special tokens that end the turn; may be empty


@dataclass(frozen=True, slots=True)
class GeneratedTurn:
    """A user's turn that the target generated."""

    number: int  # the source of its seed
    token_ids: tuple[int, ...]  # without the end token
    has_end: bool  # ended within the limit


# Generates the turns with these numbers, in any order.
GenerateTurns = Callable[[Sequence[int]], Iterable[GeneratedTurn]]


class OwnPromptFile:
    """Stores own-prompts.jsonl, one prompt per line; `dspark eval --prompts` reads it too."""

    def __init__(
        self, *, path: Path, config: OwnPromptsConfig, target: str, turn: UserTurn
    ) -> None:
        """Opens the file; ignores prompts of other settings or another target.

        target: the fingerprint. Raises LoadError for an invalid line.
        """
        about = f"{target}/{turn.opening_ids}/{sorted(turn.end_ids)}".encode()
        self._variant = (
            f"{hashlib.sha256(about).hexdigest()[:16]}-t{config.temperature:g}-p{config.top_p:g}"
            f"-n{config.max_tokens}-s{config.seed}"
        )
        self._file = JsonLinesFile(path)
        found = map(self._prompt, self._file.lines())
        self._by_number = dict(numbered for numbered in found if numbered is not None)

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def add(self, number: int, text: str) -> None:
        """Append a prompt. Raises OSError if the disk is full; the file keeps its content."""
        self._file.append(
            {"category": PROMPT_SET, "prompt": text, "number": number, "way": self._variant}
        )
        self._by_number[number] = text

    def first(self, num_prompts: int) -> tuple[Prompt, ...]:
        """Return the prompts with the lowest numbers, in order."""
        chosen = sorted(self._by_number.items())[:num_prompts]
        return tuple(Prompt(PROMPT_SET, ({"role": "user", "content": text},)) for _, text in chosen)

    def texts(self) -> list[str]:
        return list(self._by_number.values())

    def _prompt(self, line: Mapping[str, object]) -> tuple[int, str] | None:
        match line:
            case {"prompt": str(text), "number": int(number), "way": self._variant}:
                return number, text
        return None


def generate_own_prompts(
    config: OwnPromptsConfig,
    file: OwnPromptFile,
    *,
    make_generator: Callable[[], GenerateTurns],
    decode: Callable[[Sequence[int]], str | None],
    existing: Iterable[str],
    report: Callable[[int], None],
) -> Mapping[str, int]:
    """Generate prompts until the file has `config.count`; return dropped turns by reason.

    make_generator is called once if any prompt is missing. decode returns the text of a turn, or
    None without valid text. existing: texts of other prompts. Reports the number of prompts.
    Raises LoadError if the target repeats itself too often.
    """
    seen = {_normalised(text) for text in (*existing, *file.texts())}
    dropped: Counter[str] = Counter()
    numbers = (number for number in count() if number not in file)
    num_left = _ATTEMPTS_PER_PROMPT * config.count + _EXTRA_ATTEMPTS
    generate = make_generator() if len(file) < config.count else None
    report(len(file))
    while generate is not None and len(file) < config.count:
        batch = list(islice(numbers, min(config.count - len(file), num_left)))
        if not batch:
            raise LoadError(
                f"own_prompts.count: found {config.count}; accepted: at most {len(file)}, the "
                f"usable prompts of this target; of the others {_counts(dropped)} (a higher "
                "own_prompts.temperature or own_prompts.top_p makes prompts more varied)"
            )
        num_left -= len(batch)
        for turn in generate(batch):
            text = decode(turn.token_ids)
            reason = _drop_reason(turn, text, seen)
            if reason is not None or text is None:
                dropped[reason or "no text"] += 1
                continue
            seen.add(_normalised(text))
            file.add(turn.number, text)
            report(len(file))
    return dropped


def _drop_reason(turn: GeneratedTurn, text: str | None, seen: set[str]) -> str | None:
    if not turn.has_end:
        return "too long"
    if text is None or not any(letter.isalnum() for letter in text):
        return "no text"
    return "repeated" if _normalised(text) in seen else None


def _normalised(text: str) -> str:
    """Normalise case and white space."""
    return " ".join(text.casefold().split())


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{number} were {reason}" for reason, number in dropped.items()) or "nothing"
