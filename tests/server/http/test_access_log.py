"""The access log: one line per request, without prompts or outputs."""

import logging

import httpx
import pytest
from starlette.testclient import TestClient

from engine import EngineBusy, Finish, FinishReason, SpeculationStats
from server.http.access_log import log_request
from server.http.request_records import RequestRecord
from server.http.timeouts import TimeLimits
from tests.server.conftest import Connect
from tests.support.server.clients import pending_request
from tests.support.server.fakes import FakeEngine, app_with, served, wait_until


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    found = [r.getMessage() for r in caplog.records if r.name == "server.http.access_log"]
    return [dict(pair.split("=", 1) for pair in line.split(" ")) for line in found]


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "server.http.access_log")


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_is_logged_with_its_counts_and_without_its_text(
    connect: Connect, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    client = connect(FakeEngine("hello secret"))
    body = {"text": ["my secret", "b"], "stream": stream}
    client.post("/generate", json=body, headers={"x-request-id": "r-1"})
    (line,) = lines(caplog)
    assert float(line.pop("seconds")) >= 0
    assert line == {
        "request_id": "r-1",
        "client": "testclient",
        "method": "POST",
        "path": "/generate",
        "status": "200",
        "answers": "2",
        "finish": "stop",
        "prompt_tokens": "12",
        "cached_tokens": "2",
        "output_tokens": "26",
        "queue_s": "0.001",
        "prefill_s": "0.002",
        "decode_s": "0.003",
        "accept_length": "2.33",
    }
    assert "secret" not in caplog.text


def test_a_refused_request_is_logged_with_its_status(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connect().post("/generate", json={"text": "my secret", "temprature": "my secret"})
    (line,) = lines(caplog)
    assert line["status"] == "400"
    assert "answers" not in line
    assert "secret" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_is_logged_with_the_tokens_computed_so_far(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine)) as address:
        with pending_request(address, "/generate", {"text": ["hi", "hello"], "stream": stream}):
            wait_until(lambda: engine.num_events == 2)
        wait_until(lambda: bool(lines(caplog)))
    (line,) = lines(caplog)
    fields = ("status", "answers", "finish", "prompt_tokens", "output_tokens")
    assert [line[name] for name in fields] == ["499", "2", "abort", "9", "6"]
    assert "decode_s" not in line  # only a finish has it


def test_a_timed_out_request_is_logged_with_the_tokens_computed_so_far(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine, limits=TimeLimits(request_s=0.1))) as address:
        assert httpx.post(f"{address}/generate", json={"text": "hi"}).status_code == 504
    (line,) = lines(caplog)
    assert [line[name] for name in ("status", "finish", "output_tokens")] == ["504", "abort", "3"]


def test_a_request_that_the_engine_refuses_has_no_completions(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(FakeEngine(refusal=EngineBusy("the queue of 2 is full")))
    client.post("/generate", json={"text": "hi"})
    (line,) = lines(caplog)
    assert line["status"] == "429"
    assert "answers" not in line


def test_polled_routes_are_not_logged_at_info(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    for path in ("/health", "/ready", "/metrics", "/server_info", "/v1/models"):
        client.get(path)
    assert [line["path"] for line in lines(caplog)] == ["/v1/models"]


def test_a_client_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with served(app_with(FakeEngine())) as address:
        httpx.get(f"{address}/a%0Afake status=200 b{'x' * 400}")
    (line,) = lines(caplog)
    assert line["path"].startswith('"/a\\nfake\\u0020status=200\\u0020b')
    assert len(line["path"]) < 300
    assert line["status"] == "404"


def test_a_completion_without_rounds_has_no_accept_length(caplog: pytest.LogCaptureFixture) -> None:
    record = RequestRecord("r", "c", "POST", "/generate", started_at=0.0, status=200)
    finish = Finish(FinishReason.LENGTH, None, 1, 1, 0, SpeculationStats(), 0.0, 0.0, 0.0)
    record.add(0.0, finish)
    log_request(record)
    assert lines(caplog)[0]["accept_length"] == "none"


def test_the_access_log_can_be_disabled(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    connect(log_requests=False).post("/generate", json={"text": "hi"})
    assert lines(caplog) == []


def test_a_listener_that_raises_is_removed_and_no_request_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    statuses: list[int] = []

    def breaks(record: RequestRecord) -> None:
        statuses.append(record.status)
        raise ZeroDivisionError

    with TestClient(app_with(FakeEngine(), listeners=[breaks])) as client:
        for _ in range(2):
            assert client.post("/generate", json={"text": "a"}).status_code == 200
    assert statuses == [200]
    assert len(lines(caplog)) == 2
    assert caplog.text.count("observer removed") == 1
