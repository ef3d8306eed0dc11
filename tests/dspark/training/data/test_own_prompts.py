"""The target generates prompts, each once, and an interrupted run resumes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from dspark.bench.workloads.prompts import read_prompts
from dspark.training.config import OwnPromptsConfig
from dspark.training.data.own_prompts import (
    GeneratedTurn,
    OwnPromptFile,
    UserTurn,
    generate_own_prompts,
)
from dspark.training.data.turn_generator import TurnGenerator
from engine.errors import LoadError
from tests.support.engine.tiny_models import VOCAB, tiny_engine

TURN = UserTurn((3, 4), frozenset({9}))
CONFIG = OwnPromptsConfig(count=4, max_tokens=12)


class ScriptedTarget:
    """Generates turns of one token, its number; a script maps numbers to texts."""

    def __init__(self, script: Mapping[int, str], *, unended: frozenset[int] = frozenset()) -> None:
        self._script = script
        self._unended = unended
        self.numbers: list[int] = []

    def __call__(self, numbers: Sequence[int]) -> Iterator[GeneratedTurn]:
        for number in reversed(numbers):  # they end in any order
            self.numbers.append(number)
            yield GeneratedTurn(number, (number,), number not in self._unended)

    def decode(self, token_ids: Sequence[int]) -> str | None:
        (number,) = token_ids
        return self._script.get(number, f"prompt {number}")


def file_in(folder: Path, config: OwnPromptsConfig = CONFIG, *, target: str = "t") -> OwnPromptFile:
    return OwnPromptFile(path=folder / "own.jsonl", config=config, target=target, turn=TURN)


def generate(
    file: OwnPromptFile,
    target: ScriptedTarget,
    *,
    config: OwnPromptsConfig = CONFIG,
    existing: Sequence[str] = (),
    report: Callable[[int], None] = lambda done: None,
) -> Mapping[str, int]:
    return generate_own_prompts(
        config,
        file,
        make_generator=lambda: target,
        decode=target.decode,
        existing=existing,
        report=report,
    )


def texts(file: OwnPromptFile, count: int = CONFIG.count) -> list[str]:
    return [prompt.messages[0]["content"] for prompt in file.first(count)]


def test_the_configured_number_of_prompts_is_generated_each_once(tmp_path: Path) -> None:
    script = {1: "  PROMPT\n3 ", 4: "?!", 5: "known", 6: "prompt 0"}
    target = ScriptedTarget(script, unended=frozenset({2}))
    file, reports = file_in(tmp_path), list[int]()
    dropped = generate(file, target, existing=["Known"], report=reports.append)
    assert dropped == {"repeated": 3, "too long": 1, "no text": 1}
    assert texts(file) == ["prompt 0", "prompt 3", "prompt 7", "prompt 8"]
    assert reports == [0, 1, 2, 3, 4]
    assert [prompt.category for prompt in read_prompts(tmp_path / "own.jsonl")] == ["own"] * 4


def test_an_interrupted_run_resumes_with_the_missing_numbers(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.add(0, "prompt 0")
    file.add(2, "prompt 2")
    with (tmp_path / "own.jsonl").open("a") as half:
        half.write('{"category": "own", "prom')
    target = ScriptedTarget({})
    generate(file_in(tmp_path), target)
    assert sorted(target.numbers) == [1, 3]
    assert texts(file_in(tmp_path)) == [f"prompt {n}" for n in range(4)]
    again = ScriptedTarget({})
    assert generate(file_in(tmp_path), again) == {}
    assert again.numbers == []


def test_prompts_of_another_target_or_other_settings_are_ignored(tmp_path: Path) -> None:
    generate(file_in(tmp_path), ScriptedTarget({}))
    other_config = OwnPromptsConfig(count=4, max_tokens=12, temperature=1.5)
    assert len(file_in(tmp_path)) == 4
    assert len(file_in(tmp_path, target="another")) == 0
    assert len(file_in(tmp_path, other_config)) == 0
    more = OwnPromptsConfig(count=6, max_tokens=12)
    assert len(file_in(tmp_path, more)) == 4  # the count is no part of the settings


def test_a_target_that_repeats_itself_is_refused_with_the_reason(tmp_path: Path) -> None:
    script = dict.fromkeys(range(1000), "the same")
    with pytest.raises(LoadError, match=r"at most 1, the usable prompts.* were repeated"):
        generate(file_in(tmp_path), ScriptedTarget(script))


def test_a_turn_depends_on_its_number_and_stops_at_an_end_token() -> None:
    ends = frozenset(range(50, 120))

    def write(numbers: Sequence[int], concurrency: int) -> dict[int, GeneratedTurn]:
        writer = TurnGenerator(
            engine=tiny_engine().engine,
            turn=UserTurn((3, 4), ends),
            config=OwnPromptsConfig(count=1, max_tokens=5),
            concurrency=concurrency,
        )
        return {turn.number: turn for turn in writer(numbers)}

    together = write(range(12), 5)
    assert together.keys() == set(range(12))
    for turn in together.values():
        assert not ends & set(turn.token_ids)
        assert all(0 <= token_id < VOCAB for token_id in turn.token_ids)
        assert turn.has_end or len(turn.token_ids) == 5
    assert {turn.has_end for turn in together.values()} == {True, False}
    assert len({turn.token_ids for turn in together.values()}) > 6
    assert write([7], 1)[7] == together[7]
