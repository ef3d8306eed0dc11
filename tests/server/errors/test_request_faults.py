"""A fault of one request inside the engine is a 500; other requests are served."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from server.generation.stop_strings import StopStringScanner
from tests.support.server.responses import error_of
from tests.support.server.tiny_service import TinyService, tiny_service

BODY = {"prompt": "abc", "max_tokens": 40, "temperature": 0, "stop": ["@@@"]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyService]:
    feed = StopStringScanner.feed

    def broken(self: StopStringScanner, token_id: int) -> str | None:
        match = feed(self, token_id)
        if self._num_remaining == -10:
            raise ZeroDivisionError("secret detail")
        return match

    with (
        patch.object(StopStringScanner, "feed", broken),
        tiny_service(tmp_path_factory.mktemp("faults")) as tiny,
    ):
        yield tiny


def post(service: TinyService, body: dict[str, Any], route: str = "/v1/completions") -> Any:
    return httpx.post(f"{service.url}{route}", json={"model": "tiny", **body}, timeout=60)


def check_log(message: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log has a traceback under the id of the message."""
    assert "secret" not in message
    request_id = message.split()[-1]
    (record,) = [r for r in caplog.records if r.name == "engine.core.engine_core"]
    assert request_id in record.getMessage()
    assert "secret detail" in caplog.text


def test_a_fault_of_one_request_is_a_500_and_others_are_served(
    service: TinyService, caplog: pytest.LogCaptureFixture
) -> None:
    body = {**BODY, "max_tokens": 8}
    expected = post(service, body).json()["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(post, service, body) for _ in range(7)]
        broken = pool.submit(post, service, BODY).result()
        texts = [other.result().json()["choices"][0]["text"] for other in others]
    assert texts == [expected] * 7
    error = error_of(broken, 500)
    assert (error["type"], error["code"]) == ("internal_error", "internal_error")
    check_log(error["message"], caplog)
    service.wait_until_idle()
    assert service.worker.is_healthy()


def test_a_stream_with_a_fault_ends_with_an_error_event(
    service: TinyService, caplog: pytest.LogCaptureFixture
) -> None:
    response = post(service, {**BODY, "stream": True})
    assert response.status_code == 200
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert len(events) > 1
    error = json.loads(events[-1])["error"]
    assert (error["type"], error["code"]) == ("internal_error", "internal_error")
    check_log(error["message"], caplog)
    service.wait_until_idle()


def test_a_fault_has_anthropics_error_shape(service: TinyService) -> None:
    body = {
        "messages": [{"role": "user", "content": "abc"}],
        "max_tokens": 40,
        "temperature": 0,
        "stop_sequences": ["@@@"],
    }
    response = post(service, body, "/v1/messages")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "api_error"
    service.wait_until_idle()


def test_metrics_count_faults(service: TinyService) -> None:
    post(service, BODY)
    text = httpx.get(f"{service.url}/metrics").text
    assert 'finished_reason="error"' in text
