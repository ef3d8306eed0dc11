"""/metrics, parsed with the official parser."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine import EngineSnapshot, SourceStats
from server.http.metrics import outcome_of
from tests.server.conftest import Connect
from tests.support.server.clients import has_counted, pending_request
from tests.support.server.fakes import FakeEngine, app_with, served, wait_until

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

SNAPSHOT = EngineSnapshot(
    num_steps=12,
    num_rounds=10,
    num_draft_tokens=40,
    num_accepted_tokens=25,
    sources={
        "draft": SourceStats(7, 30, 18),
        "lookup": SourceStats(3, 10, 7),
        "target": SourceStats(4, 0, 0),
    },
    plain_rounds={"load": 3, "limit": 1},
    num_withheld_draft_tokens=6,
    num_capped_rounds=4,
    is_suspended=True,
    accepted_per_position=(10, 8, 5, 2),
    num_prompt_tokens=100,
    num_cached_tokens=30,
    num_output_tokens=35,
    num_preemptions=1,
    num_processed_rows=7,
    num_logprob_rows=9,
    finished={"stop": 3, "length": 1},
    stage_seconds={"draft": 1.5, "verify": 4.0},
    num_running=2,
    num_waiting=3,
    num_pages=20,
    num_used_pages=5,
    num_cached_pages=4,
    seconds_since_progress=0.25,
)


def samples_of(text: str) -> Samples:
    return {
        (sample.name.removeprefix("dspark:"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_engine_metrics_have_vllms_names(connect: Connect) -> None:
    engine = FakeEngine()
    engine.state = SNAPSHOT
    response = connect(engine).get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    samples = samples_of(response.text)
    expected = {
        "spec_decode_num_drafts_total": 10,
        "spec_decode_num_draft_tokens_total": 40,
        "spec_decode_num_accepted_tokens_total": 25,
        "spec_decode_num_withheld_draft_tokens_total": 6,
        "spec_decode_num_capped_rounds_total": 4,
        "spec_decode_is_parked": 1,
        "spec_decode_mean_accept_length": 3.5,
        "prompt_tokens_total": 100,
        "generation_tokens_total": 35,
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 30,
        "num_preemptions_total": 1,
        "processed_logit_rows_total": 7,
        "logprob_rows_total": 9,
        "steps_total": 12,
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.25,
        "seconds_since_progress": 0.25,
        "engine_up": 1,
    }
    assert {name: samples[name, ()] for name in expected} == expected
    labelled = {
        ("spec_decode_num_accepted_tokens_per_pos_total", "position"): {
            "0": 10,
            "1": 8,
            "2": 5,
            "3": 2,
        },
        ("generation_tokens_by_source_total", "source"): {
            "draft": 18,
            "lookup": 7,
            "target": 10,
        },
        ("spec_decode_num_rounds_by_source_total", "source"): {
            "draft": 7,
            "lookup": 3,
            "target": 4,
        },
        ("spec_decode_num_draft_tokens_by_source_total", "source"): {"draft": 30, "lookup": 10},
        ("spec_decode_num_accepted_tokens_by_source_total", "source"): {"draft": 18, "lookup": 7},
        ("spec_decode_num_plain_rounds_total", "reason"): {"load": 3, "limit": 1},
        ("request_success_total", "finished_reason"): {"stop": 3, "length": 1},
        ("stage_seconds_total", "stage"): {"draft": 1.5, "verify": 4.0},
        ("kv_pages", "state"): {"used": 5, "cached": 4, "free": 11},
    }
    for (name, label), values in labelled.items():
        assert {value: samples[name, ((label, value),)] for value in values} == values
    active = samples["context_kv_path", (("mode", "auto"), ("path", "per_layer"))]
    idle = samples["context_kv_path", (("mode", "auto"), ("path", "stacked"))]
    assert (active, idle) == (1, 0)


def test_each_completion_and_each_further_commit_is_timed_once(connect: Connect) -> None:
    client = connect(FakeEngine("hello world"))  # 12 tokens in steps of 3
    client.post("/generate", json={"text": ["a", "b"]})
    samples = samples_of(client.get("/metrics").text)
    counts = {
        "time_to_first_token_seconds": 2,
        "inter_token_latency_seconds": 6,
        "request_time_per_output_token_seconds": 2,
        "e2e_request_latency_seconds": 2,
        "request_queue_time_seconds": 2,
        "request_prefill_time_seconds": 2,
        "request_decode_time_seconds": 2,
        "request_accept_length": 2,
    }
    assert {name: samples[f"{name}_count", ()] for name in counts} == counts
    assert samples["request_queue_time_seconds_sum", ()] == pytest.approx(0.002)
    assert samples["request_accept_length_sum", ()] == pytest.approx(2 * (1 + 4 / 3))


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_completion_is_timed_up_to_its_last_token(stream: bool) -> None:
    engine = FakeEngine(steps_before_pause=2)
    with served(app_with(engine)) as address:
        with pending_request(address, "/generate", {"text": "hi", "stream": stream}):
            wait_until(lambda: engine.num_events == 2)
        wait_until(lambda: has_counted(address, "cancelled"))
        samples = samples_of(httpx.get(f"{address}/metrics").text)
    counts = {
        "time_to_first_token_seconds": 1,
        "inter_token_latency_seconds": 1,
        "e2e_request_latency_seconds": 0,
    }
    assert {name: samples[f"{name}_count", ()] for name in counts} == counts


def test_two_apps_in_one_process_have_separate_metrics(connect: Connect) -> None:
    first, second = connect(), connect()
    first.post("/generate", json={"text": "a"})
    assert samples_of(second.get("/metrics").text)["e2e_request_latency_seconds_count", ()] == 0


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (400, "client_error"),
        (413, "client_error"),
        (429, "overloaded"),
        (408, "timeout"),
        (504, "timeout"),
        (499, "cancelled"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_every_status_has_one_outcome(status: int, outcome: str) -> None:
    assert outcome_of(status) == outcome
