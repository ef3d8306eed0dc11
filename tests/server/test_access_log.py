"""A line per request: who, how it ended, what it cost; nothing of what was said."""

import logging

import httpx
import pytest

from engine import Finish, FinishReason, SpeculationStats
from server.access_log import log_request
from server.records import RequestRecord
from tests.server.conftest import Connect
from tests.server.fakes import FakeEngine, app_with, served, wait_until
from tests.server.test_disconnect import asking


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    found = [r.getMessage() for r in caplog.records if r.name == "server.access_log"]
    return [dict(pair.split("=", 1) for pair in line.split(" ")) for line in found]


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "server.access_log")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_logged_with_its_counts_and_without_its_text(
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


def test_a_refusal_is_logged_by_its_status_alone(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connect().post("/generate", json={"text": "my secret", "temprature": "my secret"})
    (line,) = lines(caplog)
    assert line["status"] == "400"
    assert "answers" not in line
    assert "secret" not in caplog.text


def test_a_lost_client_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine)) as address:
        with asking(address, "/generate", {"text": "hi"}):
            wait_until(lambda: len(engine.running) == 1)
        wait_until(lambda: bool(lines(caplog)))
    assert lines(caplog)[0]["status"] == "499"


def test_what_is_polled_is_not_logged_at_info(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    for path in ("/health", "/ready", "/metrics", "/v1/models"):
        client.get(path)
    assert [line["path"] for line in lines(caplog)] == ["/v1/models"]


def test_nobody_writes_a_line_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    with served(app_with(FakeEngine())) as address:
        httpx.get(f"{address}/a%0Afake status=200 b{'x' * 400}")
    (line,) = lines(caplog)
    assert line["path"].startswith('"/a\\nfake\\u0020status=200\\u0020b')
    assert len(line["path"]) < 300
    assert line["status"] == "404"


def test_an_answer_without_rounds_has_no_accept_length(caplog: pytest.LogCaptureFixture) -> None:
    record = RequestRecord("r", "c", "POST", "/generate", started_at=0.0, status=200)
    finish = Finish(FinishReason.LENGTH, None, 1, 1, 0, SpeculationStats(), 0.0, 0.0, 0.0)
    record.add(0.0, finish)
    log_request(record)
    assert lines(caplog)[0]["accept_length"] == "none"


def test_the_log_of_requests_can_be_switched_off(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connect(log_requests=False).post("/generate", json={"text": "hi"})
    assert lines(caplog) == []
