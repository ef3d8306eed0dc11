"""What the target says to the prompts, in a file that a killed run goes on with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark.training.config import AnswersConfig
from dspark.training.data.jsonl_file import LineFile
from dspark.training.data.prompts import TrainingPrompt
from dspark.training.seeds import seed_of
from engine.api import EngineSamplingParams, Request
from engine.core.engine_core import EngineCore
from engine.core.offline import drive_each
from engine.errors import LoadError


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to answer: a prompt has one answer for each."""

    name: str
    place: int
    config: AnswersConfig

    @classmethod
    def all_of(cls, config: AnswersConfig) -> "tuple[Variant, ...]":
        """In the order of the temperatures. A name holds all that an answer depends on."""
        rest = f"p{config.top_p:g}-k{config.top_k}-n{config.max_new_tokens}-s{config.seed}"
        return tuple(
            cls(f"{place}-t{temperature:g}-{rest}", place, config)
            for place, temperature in enumerate(config.temperatures)
        )

    def params(self, key: str) -> EngineSamplingParams:
        """Each answer has a seed of its own."""
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
    """One answer of the target, its end-of-sequence token included."""

    key: str
    variant: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


class AnswerFile:
    """answers.jsonl: the target's name in the first line, then an answer a line, appended."""

    def __init__(self, *, path: Path, target: str) -> None:
        """Opens or begins the file. Raises LoadError for another target's, or a broken line."""
        self._file = LineFile(path)
        lines = self._file.lines()
        if not lines:
            self._file.append({"target": target})
        elif lines[0].get("target") != target:
            raise LoadError(
                f"{path}: target: found {lines[0].get('target')}; accepted: {target}, which is the "
                "target's fingerprint (another output folder begins anew)"
            )
        self._answers = {(found.key, found.variant): found for found in map(_answer, lines[1:])}

    def find(self, prompt: TrainingPrompt, variant: Variant) -> Answer | None:
        """The answer to just these tokens in just this way."""
        found = self._answers.get((prompt.key, variant.name))
        return found if found is not None and found.prompt_ids == prompt.token_ids else None

    def add(self, answer: Answer) -> None:
        """Raises OSError when the disk is full; what was there before stays."""
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
    """Let the target answer what it has not answered yet; how many that were.

    Reports answers at hand. Raises RequestRejected when a prompt cannot be served.
    """
    wanted = [(prompt, variant) for prompt in prompts for variant in Variant.all_of(config)]
    missing = [pair for pair in wanted if file.find(*pair) is None]
    # Texts of like length together: a batch's attention is padded to its longest.
    missing.sort(key=lambda pair: len(pair[0].token_ids))
    by_id = {f"{prompt.key}/{variant.name}": (prompt, variant) for prompt, variant in missing}
    requests = [
        Request(name, prompt.token_ids, variant.params(prompt.key))
        for name, (prompt, variant) in by_id.items()
    ]
    done = len(wanted) - len(missing)
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
    """Answers that `generate_answers` would make."""
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
