"""What one trial says."""

import pytest

from dspark.bench.http.backends import Usage
from dspark.bench.http.figures import COUNTED, ServedTrial, peak_open, served_figures
from dspark.bench.http.streamed_request import Call, Failure


def answered(prompt: int, started: float, times: list[float], tokens: int | None) -> Call:
    return Call(prompt, started, times, "x", "stop", Usage(10, tokens, 0))


def test_figures_are_those_of_the_field() -> None:
    calls = [answered(1, 0.5, [1.0, 2.0], 11), answered(0, 0.0, [1.0, 1.5, 2.0], 21)]
    trial = ServedTrial.of(calls, has_forgotten=True)
    assert [call.prompt for call in trial.calls] == [0, 1]
    found = served_figures(trial)
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


def test_without_usage_nothing_that_counts_tokens_is_told() -> None:
    calls = [answered(0, 0.0, [1.0, 2.0], None), answered(1, 0.0, [1.0, 2.0], 5)]
    found = served_figures(ServedTrial.of(calls, has_forgotten=True))
    assert not set(COUNTED) & set(found)
    assert found["ttft_ms_p50"] == 1000


def test_failed_requests_are_counted_and_take_no_part_in_latencies() -> None:
    failed = Call(1, 0.0, [0.1], failure=Failure("early close", "gone"))
    trial = ServedTrial.of([answered(0, 0.0, [1.0], 1), failed], has_forgotten=True)
    found = served_figures(trial)
    assert (found["completed"], found["failed"]) == (1, 1)
    assert found["ttft_ms_mean"] == 1000
    assert trial.failures() == {("early close", "gone"): 1}


def test_a_trial_without_answers_has_no_rates() -> None:
    failed = Call(0, 0.0, failure=Failure("no connection", "refused"))
    found = served_figures(ServedTrial.of([failed], has_forgotten=False))
    assert found == {
        "completed": 0,
        "failed": 1,
        "duration_s": 0.0,
        "peak_concurrent_requests": 1,
    }


def test_the_peak_is_of_requests_open_at_once() -> None:
    spans = [(0, 2), (1, 3), (2, 4)]
    calls = [answered(i, start, [end], 1) for i, (start, end) in enumerate(spans)]
    assert peak_open(calls) == 2


@pytest.mark.parametrize(
    ("has_forgotten", "cached", "is_cold"),
    [(False, None, False), (False, 3, False), (False, 0, True), (True, None, True)],
)
def test_a_server_is_cold_that_has_dropped_its_prefixes_or_counts_none_of_them(
    has_forgotten: bool, cached: int | None, is_cold: bool
) -> None:
    call = Call(0, 0.0, [1.0], "x", "stop", Usage(10, 1, cached))
    assert ServedTrial.of([call], has_forgotten=has_forgotten).is_known_to_be_cold is is_cold


def test_the_clients_own_cpu_is_told_by_time_and_by_event() -> None:
    calls = [answered(0, 0.0, [1.0, 2.0], 2), answered(1, 0.0, [3.0, 4.0], 2)]
    found = served_figures(ServedTrial.of(calls, has_forgotten=True, client_cpu_s=0.002))
    assert found["client_cpu_percent"] == pytest.approx(0.05)
    assert found["client_cpu_us_per_event"] == pytest.approx(500)
