"""Answers are generated once, and an interrupted run resumes."""

from pathlib import Path

import pytest

from dspark.training.config import AnswersConfig
from dspark.training.data.answers import AnswerFile, Variant, count_missing, generate_answers
from dspark.training.data.prompts import TrainingPrompt
from engine.errors import LoadError
from tests.support.engine.running import generate_alone, prompts
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target
from tests.support.full_disk import room_for

CONFIG = AnswersConfig(temperatures=(0.0, 0.9), max_new_tokens=9, min_tokens=2, concurrency=3)
PROMPTS = [
    TrainingPrompt(f"key{i}", "set", tuple(ids), False)
    for i, ids in enumerate(prompts(4, vocab=VOCAB))
]


def generate(path: Path, *, selected: list[TrainingPrompt] = PROMPTS) -> tuple[int, AnswerFile]:
    file = AnswerFile(path=path, target="name")
    num_made = generate_answers(tiny_engine().engine, selected, CONFIG, file, report=lambda n: None)
    return num_made, file


def test_each_prompt_has_a_greedy_and_a_sampled_answer_with_its_own_seed(
    tmp_path: Path,
) -> None:
    num_made, file = generate(tmp_path / "answers.jsonl")
    assert num_made == 8
    greedy, sampled = Variant.all_of(CONFIG)
    target = tiny_target()
    for prompt in PROMPTS:
        found = file.find(prompt, greedy)
        assert found is not None
        assert list(found.answer_ids) == generate_alone(target, prompt.token_ids, 9)
        assert file.find(prompt, sampled) is not None
    assert len({sampled.params(prompt.key).seed for prompt in PROMPTS}) == 4
    assert sampled.params("key0").temperature == 0.9


def test_an_interrupted_run_resumes_with_the_same_answers(tmp_path: Path) -> None:
    generate(tmp_path / "complete.jsonl")
    killed = tmp_path / "killed.jsonl"
    generate(killed, selected=PROMPTS[:2])
    with killed.open("a") as file:
        file.write('{"prompt": "key2", "variant": "0-t0')
    num_made, _ = generate(killed)
    assert num_made == 4
    assert sorted(killed.read_text().splitlines()) == sorted(
        (tmp_path / "complete.jsonl").read_text().splitlines()
    )
    assert generate(killed)[0] == 0


def test_other_sampling_settings_need_other_answers(tmp_path: Path) -> None:
    _, file = generate(tmp_path / "answers.jsonl")
    other_config = AnswersConfig(temperatures=(0.0, 1.5), max_new_tokens=9, min_tokens=2)
    assert count_missing(PROMPTS, CONFIG, file) == 0
    assert count_missing(PROMPTS, other_config, file) == 4
    other = [TrainingPrompt(p.key, p.prompt_set, (*p.token_ids, 5), False) for p in PROMPTS]
    assert count_missing(other, CONFIG, file) == 8  # the same text in other tokens


def test_another_targets_answers_are_refused(tmp_path: Path) -> None:
    generate(tmp_path / "answers.jsonl", selected=PROMPTS[:1])
    with pytest.raises(LoadError, match="target: found name; accepted: other"):
        AnswerFile(path=tmp_path / "answers.jsonl", target="other")


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    generate(path, selected=PROMPTS[:1])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{broken", *lines[1:]]) + "\n")
    with pytest.raises(LoadError, match=r"answers.jsonl:2: found no JSON object"):
        AnswerFile(path=path, target="name")


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    _, file = generate(path, selected=PROMPTS[:1])
    before = path.read_text()
    answer = file.find(PROMPTS[0], Variant.all_of(CONFIG)[0])
    assert answer is not None
    with room_for(len(before) + 10), pytest.raises(OSError, match=r"too large: .*answers.jsonl"):
        file.add(answer)
    assert path.read_text() == before
