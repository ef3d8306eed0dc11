"""Prompts that the target writes itself: what it says where a user would speak. No torch here.

An instruct model that is shown the opening of a user's turn, and nothing more, goes on with a
prompt of the kind that it was taught with (Xu et al. 2024, "Magpie").
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from dspark.bench.workloads.prompts import Prompt
from dspark.training.config import OwnPromptsConfig
from dspark.training.data.jsonl_file import LineFile
from engine.errors import LoadError

PROMPT_SET = "own"
_TRIES = 3  # turns for each prompt that is wanted, before giving up ...
_FIRST_TRIES = 64  # ... and so many more


@dataclass(frozen=True, slots=True)
class UserTurn:
    """How a chat template lets a user speak, in tokens."""

    opening_ids: tuple[int, ...]
    end_ids: frozenset[int]  # special tokens that end the turn; may be none


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """What the target said as the user."""

    number: int  # from which everything random in it follows
    token_ids: tuple[int, ...]  # without the token that ended it
    has_end: bool  # whether it came to an end


# Turns by number, in any order.
WriteTurns = Callable[[Sequence[int]], Iterable[WrittenTurn]]


class OwnPromptFile:
    """own-prompts.jsonl: a prompt a line, appended. `dspark eval --prompts` reads it too."""

    def __init__(
        self, *, path: Path, config: OwnPromptsConfig, target: str, turn: UserTurn
    ) -> None:
        """Opens the file. Prompts that were written in another way than this are passed over.

        target: its fingerprint. Raises LoadError for a broken line.
        """
        about = f"{target}/{turn.opening_ids}/{sorted(turn.end_ids)}".encode()
        self._way = (
            f"{hashlib.sha256(about).hexdigest()[:16]}-t{config.temperature:g}-p{config.top_p:g}"
            f"-n{config.max_tokens}-s{config.seed}"
        )
        self._file = LineFile(path)
        found = map(self._prompt, self._file.lines())
        self._by_number = dict(numbered for numbered in found if numbered is not None)

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def add(self, number: int, text: str) -> None:
        """Raises OSError when the disk is full; what was there before stays."""
        self._file.append(
            {"category": PROMPT_SET, "prompt": text, "number": number, "way": self._way}
        )
        self._by_number[number] = text

    def first(self, num_prompts: int) -> tuple[Prompt, ...]:
        """In the order of their numbers."""
        chosen = sorted(self._by_number.items())[:num_prompts]
        return tuple(Prompt(PROMPT_SET, ({"role": "user", "content": text},)) for _, text in chosen)

    def texts(self) -> list[str]:
        return list(self._by_number.values())

    def _prompt(self, line: Mapping[str, object]) -> tuple[int, str] | None:
        match line:
            case {"prompt": str(text), "number": int(number), "way": self._way}:
                return number, text
        return None


def gather_own_prompts(
    config: OwnPromptsConfig,
    file: OwnPromptFile,
    *,
    write: Callable[[], WriteTurns],
    read: Callable[[Sequence[int]], str | None],
    known: Iterable[str],
    report: Callable[[int], None],
) -> Mapping[str, int]:
    """Let the file have as many prompts as are wanted; how many turns were dropped, by reason.

    write: called once if anything is missing. read: a turn's text, None if it is none. known:
    texts that are prompts already. Reports prompts at hand.
    Raises LoadError when the target writes the same things over and over.
    """
    taken = {_squeezed(text) for text in (*known, *file.texts())}
    dropped: Counter[str] = Counter()
    numbers = (number for number in count() if number not in file)
    num_left = _TRIES * config.count + _FIRST_TRIES
    writer = write() if len(file) < config.count else None
    report(len(file))
    while writer is not None and len(file) < config.count:
        asked = list(islice(numbers, min(config.count - len(file), num_left)))
        if not asked:
            raise LoadError(
                f"own_prompts.count: found {config.count}; accepted: at most {len(file)} of what "
                f"this target writes, for of all else {_told(dropped)} (a higher "
                "own_prompts.temperature or own_prompts.top_p makes prompts more varied)"
            )
        num_left -= len(asked)
        for turn in writer(asked):
            text = read(turn.token_ids)
            reason = _why_not(turn, text, taken)
            if reason is not None or text is None:
                dropped[reason or "no text"] += 1
                continue
            taken.add(_squeezed(text))
            file.add(turn.number, text)
            report(len(file))
    return dropped


def _why_not(turn: WrittenTurn, text: str | None, taken: set[str]) -> str | None:
    if not turn.has_end:
        return "too long"
    if text is None or not any(letter.isalnum() for letter in text):
        return "no text"
    return "repeated" if _squeezed(text) in taken else None


def _squeezed(text: str) -> str:
    """What is the same in texts that differ in case and spaces alone."""
    return " ".join(text.casefold().split())


def _told(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{number} were {reason}" for reason, number in dropped.items()) or "nothing"
