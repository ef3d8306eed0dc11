"""Accept lengths per prompt set."""

from pathlib import Path

import pytest

from dspark.bench.draft_quality.accept_lengths import SetResult, measure_accept_lengths
from engine.api import SpeculationStats
from engine.errors import LoadError
from tests.support.bench.runs import silent, workload
from tests.support.engine.running import generate_alone, oracle
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft


def test_rates_are_shares_of_rounds_accepted_up_to_a_position() -> None:
    result = SetResult("chat", 0.0, 1, 19, SpeculationStats((4, 3, 2, 1), 30))
    assert result.accept_rates == pytest.approx((0.6, 0.3, 0.1))
    assert result.accept_length == pytest.approx(1 + sum(result.accept_rates))
    values = result.values()
    assert values["accept_rate@2"] == pytest.approx(0.1)
    assert values["rounds"] == 10


def test_a_draft_that_is_right_about_two_tokens_has_an_accept_length_of_three(
    tmp_path: Path,
) -> None:
    target = tiny_target(has_eos=False)
    load = workload(4, max_tokens=13)
    texts = [
        [*prompt.token_ids, *generate_alone(target, prompt.token_ids, 20)]
        for prompt in load.prompts
    ]
    built = tiny_engine(target=target, draft_folder=write_tiny_draft(tmp_path))
    with oracle(texts, good=2, vocab=VOCAB):
        found = measure_accept_lengths(built, load, temperatures=(0.0,), report=silent)
    assert [result.prompt_set for result in found.results] == ["chat", "code", "all"]
    assert [result.accept_length for result in found.results] == [3.0, 3.0, 3.0]
    assert found.results[-1].num_prompts == 4
    header, *rows = found.lines()
    assert header.split()[-5:] == ["accept_len", *(f"accept_rate@{k}" for k in range(4))]
    assert rows[0].split() == ["chat", "0", "2", "8", "3.000", "1.000", "1.000", "0.000", "0.000"]


def test_results_are_separate_for_each_temperature(tmp_path: Path) -> None:
    built = tiny_engine(draft_folder=write_tiny_draft(tmp_path))
    found = measure_accept_lengths(built, workload(2), temperatures=(0.0, 1.0), report=silent)
    assert [(r.prompt_set, r.temperature) for r in found.results] == [
        (name, t) for t in (0.0, 1.0) for name in ("chat", "code", "all")
    ]
    assert found.holds


def test_without_a_draft_there_is_nothing_to_evaluate() -> None:
    with pytest.raises(LoadError, match="a draft to evaluate"):
        measure_accept_lengths(tiny_engine(), workload(1), temperatures=(0.0,), report=silent)
