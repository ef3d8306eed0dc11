"""Comparing the engine with generate, over tiny models."""

import json
from pathlib import Path

import pytest

from dspark.bench.compare.transformers import TransformersArm, compare_transformers
from engine.errors import LoadError
from tests.support.bench.broken_engine import wrong_verification
from tests.support.bench.runs import silent, workload
from tests.support.engine.running import generate_alone
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft

LOAD = workload(2, max_tokens=8, high=12)


def test_generate_is_an_arm_like_any_other() -> None:
    target = tiny_target(has_eos=False)
    trial = TransformersArm(target).run(LOAD)
    for run, prompt in zip(trial.runs, LOAD.prompts, strict=True):
        assert run.token_ids == generate_alone(target, prompt.token_ids, 8)
        assert run.event_sizes == [1] * 8  # a time for every token
        assert run.started_at < run.event_times[0] <= run.ended_at
        assert run.finish is not None
        assert run.finish.num_output_tokens == 8
    assert trial.seconds > 0


def test_all_arms_generate_the_same_and_are_compared_with_generate(tmp_path: Path) -> None:
    target = tiny_target(has_eos=False)
    plain = tiny_engine(target=target)
    speculative = tiny_engine(target=target, draft_folder=write_tiny_draft(tmp_path))
    labels: list[str] = []
    found = compare_transformers(plain, speculative, LOAD, trials=2, report=labels.append)
    assert [arm.name for arm in found.arms] == ["transformers", "plain", "speculation"]
    assert len(labels) == 3 * (1 + 2)
    assert found.holds
    assert found.agreement.num_texts == 10
    values = json.loads(json.dumps(found.values(), allow_nan=False))
    assert values["token_ids_identical"] is True
    assert values["tokens_per_s_transformers"] > 0
    assert set(values["speedup"]) == {"plain", "speculation"}
    lines = found.lines()
    assert any(
        x.startswith("speculation / transformers, output tokens/s end to end") for x in lines
    )
    assert lines[-1] == "token ids: identical in all 10 texts"


def test_an_engine_with_another_text_fails_the_comparison(tmp_path: Path) -> None:
    target = tiny_target(has_eos=False)
    speculative = tiny_engine(target=target, draft_folder=write_tiny_draft(tmp_path))
    plain = tiny_engine(target=target)
    with wrong_verification(vocab=VOCAB):
        found = compare_transformers(plain, speculative, LOAD, trials=1, report=silent)
    assert not found.holds
    assert found.lines()[-3].startswith("token ids: DIFFERENT")


def test_without_a_draft_there_are_two_arms() -> None:
    found = compare_transformers(tiny_engine(), None, LOAD, trials=1, report=silent)
    assert [arm.name for arm in found.arms] == ["transformers", "plain"]


def test_a_target_that_generates_otherwise_is_no_baseline() -> None:
    target = tiny_target()
    target.model.generation_config.num_beams = 4  # type: ignore[union-attr]
    with pytest.raises(LoadError, match="num_beams: found 4"):
        compare_transformers(tiny_engine(target=target), None, LOAD, trials=1, report=silent)
