"""Generates answers of the target in a file from which an interrupted run resumes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark.training.config import AnswersConfig
from dspark.training.data.jsonl_file import JsonLinesFile
from dspark.training.data.prompts import TrainingPrompt
from dspark.training.seeds import seed_of
from engine.api import EngineSamplingParams, Request
from engine.core.engine_core import EngineCore
from engine.core.offline import drive_each
from engine.errors import LoadError


@dataclass(frozen=True, slots=True)
class Variant:
    """One sampling variant; every prompt has one answer per variant."""

    name: str
    place: int
    config: AnswersConfig

    @classmethod
    def all_of(cls, config: AnswersConfig) -> "tuple[Variant, ...]":
        """Return the variants in the order of temperatures; names contain all sampling settings."""
        sampling = f"p{config.top_p:g}-k{config.top_k}-n{config.max_new_tokens}-s{config.seed}"
        return tuple(
            cls(f"{place}-t{temperature:g}-{sampling}", place, config)
            for place, temperature in enumerate(config.temperatures)
        )

    def params(self, key: str) -> EngineSamplingParams:
        """Return sampling parameters with a separate seed for each prompt."""
        config = self.config
        return EngineSamplingParams(
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperatures[self.place],
            top_p=config.top_p,
            top_k=config.top_k,
            seed=seed_of(config.seed, self.place, key),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the target, including its end-of-sequence token."""

    key: str
    variant: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


class AnswerFile:
    """Stores answers.jsonl: the target's fingerprint, then one answer per line, appended."""

    def __init__(self, *, path: Path, target: str) -> None:
        """Opens or creates the file. Raises LoadError for another target or an invalid line."""
        self._file = JsonLinesFile(path)
        lines = self._file.lines()
        if not lines:
            self._file.append({"target": target})
        elif lines[0].get("target") != target:
            raise LoadError(
                f"{path}: target: found {lines[0].get('target')}; accepted: {target}, which is the "
                "target's fingerprint (use another output folder)"
            )
        self._answers = {(found.key, found.variant): found for found in map(_answer, lines[1:])}

    def find(self, prompt: TrainingPrompt, variant: Variant) -> Answer | None:
        """Return the answer to exactly these tokens with this variant."""
        found = self._answers.get((prompt.key, variant.name))
        return found if found is not None and found.prompt_ids == prompt.token_ids else None

    def add(self, answer: Answer) -> None:
        """Append an answer. Raises OSError if the disk is full; the file keeps its content."""
        self._file.append(
            {
                "prompt": answer.key,
                "variant": answer.variant,
                "prompt_ids": list(answer.prompt_ids),
                "answer_ids": list(answer.answer_ids),
            }
        )
        self._answers[answer.key, answer.variant] = answer


def generate_answers(
    engine: EngineCore,
    prompts: Sequence[TrainingPrompt],
    config: AnswersConfig,
    file: AnswerFile,
    *,
    report: Callable[[int], None],
) -> int:
    """Generate the missing answers; return their number.

    Reports the number of answers in the file. Raises RequestRejected for a prompt that cannot be
    served.
    """
    pairs = [(prompt, variant) for prompt in prompts for variant in Variant.all_of(config)]
    missing = [pair for pair in pairs if file.find(*pair) is None]
    # Prompts of similar length together: attention is padded to the longest of a batch.
    missing.sort(key=lambda pair: len(pair[0].token_ids))
    by_id = {f"{prompt.key}/{variant.name}": (prompt, variant) for prompt, variant in missing}
    requests = [
        Request(name, prompt.token_ids, variant.params(prompt.key))
        for name, (prompt, variant) in by_id.items()
    ]
    done = len(pairs) - len(missing)
    report(done)
    for run in drive_each(engine, requests, concurrency=config.concurrency):
        prompt, variant = by_id[run.request.request_id]
        file.add(Answer(prompt.key, variant.name, prompt.token_ids, tuple(run.token_ids)))
        done += 1
        report(done)
    return len(missing)


def count_missing(
    prompts: Sequence[TrainingPrompt], config: AnswersConfig, file: AnswerFile
) -> int:
    """Return how many answers `generate_answers` would generate."""
    variants = Variant.all_of(config)
    return sum(file.find(prompt, variant) is None for prompt in prompts for variant in variants)


def _answer(line: Mapping[str, object]) -> Answer:
    match line:
        case {"prompt": str(k), "variant": str(v), "prompt_ids": list(p), "answer_ids": list(a)}:
            return Answer(k, v, tuple(map(int, p)), tuple(map(int, a)))
    raise LoadError(
        f"answers.jsonl: found a line with the keys {', '.join(line)}; accepted: prompt, variant, "
        "prompt_ids, answer_ids"
    )
