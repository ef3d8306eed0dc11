import dataclasses
import json
from pathlib import Path

import pytest
from transformers import GenerationConfig

from dspark.bench.compare.greedy_identity import (
    Verification,
    refuse_other_decoding,
    verify_greedy_identity,
)
from dspark.bench.compare.identity import Comparison, Difference
from engine import LoadError
from engine.build import Built
from tests.support.bench.broken_engine import wrong_verification
from tests.support.bench.runs import workload
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return tiny_engine(target=tiny_target(has_eos=False), draft_folder=write_tiny_draft(tmp_path))


def verify(built: Built, labels: list[str] | None = None) -> Verification:
    return verify_greedy_identity(
        built,
        workload(3).prompts,
        max_new_tokens=10,
        concurrency=2,
        report=(labels if labels is not None else []).append,
    )


def test_the_engine_generates_the_text_of_transformers(built: Built) -> None:
    labels: list[str] = []
    found = verify(built, labels)
    assert found.holds
    assert found.count("ok") == 3
    assert found.accept_length > 1 or found.num_accepted == 0
    assert found.num_rounds > 0
    assert found.is_guaranteed
    assert labels == [f"reference {i} of 3" for i in (1, 2, 3)] + ["engine"]
    assert found.lines()[-1].startswith("3 prompts: 3 ok, 0 ties, 0 different; mean accept length")
    header = "prompt category outcome tokens accept length at"
    assert found.lines()[0].split() == header.split()


def test_a_wrong_token_is_reported_with_its_position(built: Built) -> None:
    with wrong_verification(vocab=VOCAB):
        found = verify(built)
    assert not found.holds
    assert found.count("DIFFERENT") == 3
    assert "output token 1: expected" in "".join(found.lines())
    values = json.loads(json.dumps(found.values(), allow_nan=False))
    assert values["different"] == 3
    assert values["results"][0]["position"] == 1


def test_ties_are_counted_apart() -> None:
    tie = Comparison((1, 2), (1, 3), 0.0, Difference(1, 2, 3, 5e-5))
    end = Comparison((1, 2), (1,), 0.0, Difference(1, 2, None, 0.5))
    found = Verification(("chat", "code"), (tie, end), 0, 0, is_guaranteed=True)
    assert (found.count("tie"), found.count("DIFFERENT"), found.holds) == (1, 1, False)
    assert "expected id 2, found the end, top-2 gap 5.0e-01" in found.lines()[2]
    assert dataclasses.replace(found, categories=("chat",), comparisons=(tie,)).holds


def test_lower_precision_has_a_note_on_the_guarantee() -> None:
    found = Verification((), (), 0, 0, is_guaranteed=False)
    assert found.lines()[-1].startswith("identity is guaranteed in float32 only")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_beams": 4}, "num_beams: found 4"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size: found 3"),
        ({"suppress_tokens": [5]}, "suppress_tokens: found [5]"),
        ({"min_new_tokens": 9}, "min_new_tokens: found 9"),
    ],
)
def test_a_target_that_generates_otherwise_is_refused(
    changes: dict[str, object], message: str, built: Built
) -> None:
    built.target.model.generation_config = GenerationConfig(**changes)
    with pytest.raises(LoadError) as refused:
        verify(built)
    assert message in str(refused.value)


def test_sampling_settings_are_accepted() -> None:
    """generate(do_sample=False) ignores them, and the reference has no penalty."""
    refuse_other_decoding(None)
    refuse_other_decoding(GenerationConfig())
    refuse_other_decoding(
        GenerationConfig(do_sample=True, temperature=0.6, top_p=0.9, repetition_penalty=1.1)
    )
