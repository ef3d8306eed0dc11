"""Metrics of runs, checked by hand."""

import pytest

from dspark.bench.workloads.summary import REST, sum_up
from dspark.bench.workloads.table import arm_table, stage_table
from dspark.bench.workloads.trial import trial_metrics
from engine import EngineSnapshot, SpeculationStats
from tests.support.bench.runs import run, trial


def test_rates_and_latencies_of_two_requests() -> None:
    first = run([1.0, 2.0, 4.0], [1, 3, 2], started_at=0.5)
    second = run([5.0, 6.0], [1, 1], started_at=4.0, prompt=(1, 2))
    found = trial_metrics(trial([first, second], seconds=8.0))
    assert found["requests"] == 2
    assert (found["input_tokens"], found["output_tokens"]) == (5, 8)
    assert found["tokens_per_s"] == 1.0
    assert found["total_tokens_per_s"] == 13 / 8
    assert found["requests_per_s"] == 0.25
    assert found["decode_tokens_per_s"] == 6 / 4  # 5 tokens in 3 s, 1 token in 1 s
    assert found["ttft_ms_mean"] == 750
    assert found["tpot_ms_mean"] == pytest.approx(1000 * (3 / 5 + 1 / 1) / 2)
    assert found["itl_ms_p50"] == 1000  # gaps of 1, 2 and 1 s: events, not tokens
    assert found["itl_ms_mean"] == pytest.approx(4000 / 3)
    assert found["e2e_ms_p99"] == pytest.approx(3485)


def test_a_request_of_one_token_has_a_first_token_and_no_more() -> None:
    found = trial_metrics(trial([run([0.25], [1])]))
    assert found["ttft_ms_p99"] == 250
    assert (found["decode_tokens_per_s"], found["tpot_ms_mean"], found["itl_ms_p99"]) == (0, 0, 0)


def test_accept_length_is_one_more_than_the_accepted_tokens_of_a_round() -> None:
    stats = [SpeculationStats((2, 1, 1), 10), SpeculationStats((0, 0, 0, 4), 12)]
    arm = sum_up("a", [trial([run([1.0], [1], stats=s) for s in stats])])
    found = {name: values[0] for name, values in arm.by_trial.items()}
    assert (found["drafts"], found["draft_tokens"], found["accepted_tokens"]) == (8, 22, 15)
    assert found["accept_length"] == arm.accept_length == 1 + 15 / 8
    assert found["accept_rate_percent"] == pytest.approx(100 * 15 / 22)
    assert arm.accepted_percent_per_position == (75.0, 62.5, 50.0)


def test_withheld_drafts_are_those_of_the_trial() -> None:
    before = EngineSnapshot(num_withheld_draft_tokens=5)
    after = EngineSnapshot(num_withheld_draft_tokens=12)
    found = trial_metrics(trial([run([1.0], [1])], before=before, after=after))
    assert found["withheld_draft_tokens"] == 7


def test_without_a_draft_every_pass_generates_one_token() -> None:
    arm = sum_up("plain", [trial([run([1.0, 2.0], [1, 1])])])
    assert arm.accept_length == 1
    assert arm.accepted_percent_per_position == ()


def test_stage_shares_are_what_the_counters_gained_and_the_rest() -> None:
    before = EngineSnapshot(num_steps=10, stage_seconds={"draft": 1.0, "verify": 5.0})
    after = EngineSnapshot(num_steps=14, stage_seconds={"draft": 2.0, "verify": 8.0, "plan": 0.5})
    arm = sum_up("a", [trial([run([1.0], [1])], seconds=8.0, before=before, after=after)])
    shares = {name: share.percent for name, share in arm.stages.items()}
    assert shares == {
        "plan": 6.25,
        "draft": 12.5,
        "verify": 37.5,
        "commit": 0,
        "context": 0,
        REST: 43.75,
    }
    assert arm.stages["verify"].ms_per_step == 750
    assert any("37.5 %" in line and "750.000 ms" in line for line in stage_table([arm]))


def test_categories_are_summarised_separately() -> None:
    chat = run([1.0, 2.0], [1, 1], stats=SpeculationStats((1,), 3))
    code = run([1.0, 2.0], [1, 4], stats=SpeculationStats((0, 0, 0, 1), 3))
    arm = sum_up("a", [trial([chat, code], categories=["chat", "code"])] * 3)
    assert arm.categories["chat"].accept_length == 1
    assert arm.categories["code"].accept_length == 4
    assert arm.categories["chat"].decode_tokens_per_s == (1, 1, 1)
    assert arm.categories["code"].decode_tokens_per_s == (4, 4, 4)


def test_an_arm_gives_the_median_of_its_trials_with_their_range() -> None:
    arm = sum_up("a", [trial([run([1.0], [10])], seconds=s) for s in (2.0, 1.0, 4.0)])
    speed = arm.spread("tokens_per_s")
    assert (speed.median, speed.low, speed.high) == (5.0, 2.5, 10.0)
    assert any(line.endswith("5 [2.5 - 10]") for line in arm_table([arm]))
