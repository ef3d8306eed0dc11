"""Metrics of one trial, checked by hand."""

import pytest

from dspark.bench.http.backends import Usage
from dspark.bench.http.request_metrics import COUNTED, ServedTrial, peak_concurrency, trial_metrics
from dspark.bench.http.streamed_request import Failure, RequestRecord


def answered(prompt: int, started: float, times: list[float], tokens: int | None) -> RequestRecord:
    return RequestRecord(prompt, started, times, "x", "stop", Usage(10, tokens, 0))


def test_metrics_of_two_requests() -> None:
    records = [answered(1, 0.5, [1.0, 2.0], 11), answered(0, 0.0, [1.0, 1.5, 2.0], 21)]
    trial = ServedTrial.of(records, cache_flushed=True)
    assert [record.prompt for record in trial.records] == [0, 1]
    found = trial_metrics(trial)
    assert found["duration_s"] == 2.0
    assert found["completed"] == 2
    assert found["total_generated_tokens"] == 32
    assert found["output_throughput"] == 16
    assert found["total_token_throughput"] == 26
    assert found["request_throughput"] == 1
    assert found["ttft_ms_mean"] == 750
    assert found["tpot_ms_p50"] == pytest.approx(75)  # 1 s for 10 tokens, 1 s for 20
    assert found["itl_ms_p99"] == pytest.approx(990)
    assert found["e2el_ms_p50"] == pytest.approx(1750)


def test_without_usage_metrics_of_tokens_are_left_out() -> None:
    records = [answered(0, 0.0, [1.0, 2.0], None), answered(1, 0.0, [1.0, 2.0], 5)]
    found = trial_metrics(ServedTrial.of(records, cache_flushed=True))
    assert not set(COUNTED) & set(found)
    assert found["ttft_ms_p50"] == 1000


def test_failed_requests_are_counted_and_take_no_part_in_latencies() -> None:
    failed = RequestRecord(1, 0.0, [0.1], failure=Failure("early close", "gone"))
    trial = ServedTrial.of([answered(0, 0.0, [1.0], 1), failed], cache_flushed=True)
    found = trial_metrics(trial)
    assert (found["completed"], found["failed"]) == (1, 1)
    assert found["ttft_ms_mean"] == 1000
    assert trial.failures() == {("early close", "gone"): 1}


def test_a_trial_without_answers_has_no_rates() -> None:
    failed = RequestRecord(0, 0.0, failure=Failure("no connection", "refused"))
    found = trial_metrics(ServedTrial.of([failed], cache_flushed=False))
    assert found == {
        "completed": 0,
        "failed": 1,
        "duration_s": 0.0,
        "peak_concurrent_requests": 1,
    }


def test_the_peak_is_of_requests_open_at_once() -> None:
    spans = [(0, 2), (1, 3), (2, 4)]
    records = [answered(i, start, [end], 1) for i, (start, end) in enumerate(spans)]
    assert peak_concurrency(records) == 2


@pytest.mark.parametrize(
    ("cache_flushed", "cached", "is_cold"),
    [(False, None, False), (False, 3, False), (False, 0, True), (True, None, True)],
)
def test_a_server_is_cold_that_has_dropped_its_prefixes_or_counts_none_of_them(
    cache_flushed: bool, cached: int | None, is_cold: bool
) -> None:
    record = RequestRecord(0, 0.0, [1.0], "x", "stop", Usage(10, 1, cached))
    assert ServedTrial.of([record], cache_flushed=cache_flushed).is_known_to_be_cold is is_cold


def test_the_cpu_time_of_the_client_is_reported_by_time_and_by_event() -> None:
    records = [answered(0, 0.0, [1.0, 2.0], 2), answered(1, 0.0, [3.0, 4.0], 2)]
    found = trial_metrics(ServedTrial.of(records, cache_flushed=True, client_cpu_s=0.002))
    assert found["client_cpu_percent"] == pytest.approx(0.05)
    assert found["client_cpu_us_per_event"] == pytest.approx(500)
