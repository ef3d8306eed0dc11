"""One streamed request, and the kinds of failure."""

import asyncio

import httpx
import pytest

from dspark.bench.http.backends import BACKENDS, Sampling, Usage
from dspark.bench.http.streamed_request import RequestRecord, send_request
from tests.support.bench.broken_server import CHUNK, DONE, LAST, answer, responding
from tests.support.server.fakes import FakeEngine, app_with, served

MESSAGES = ({"role": "user", "content": "say hello"},)


def send(url: str, kind: str = "openai-chat", *, max_tokens: int = 50) -> RequestRecord:
    backend = BACKENDS[kind]

    async def run() -> RequestRecord:
        async with httpx.AsyncClient(base_url=url, timeout=5) as client:
            body = backend.body(MESSAGES, Sampling(max_tokens), model="tiny")
            return await send_request(client, backend, body, prompt=3)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "num_input"), [("openai-chat", 27), ("openai", 10), ("native", 27)]
)
def test_an_answer_has_its_text_its_times_and_the_servers_own_counts(
    kind: str, num_input: int
) -> None:
    with served(app_with(FakeEngine("hello world", tokens_per_step=4))) as url:
        done = send(url, kind)
    assert done.failure is None
    assert (done.prompt, done.text, done.finish_reason) == (3, "hello world", "stop")
    assert done.usage == Usage(num_input, 12, 1)  # the end of text is a token too
    assert len(done.event_times) == 3  # four tokens each
    assert done.started_at < done.event_times[0] <= done.event_times[-1]
    assert done.tpot == pytest.approx((done.event_times[-1] - done.event_times[0]) / 11)
    assert done.e2e >= done.ttft > 0
    assert len(done.inter_event_times) == 2


@pytest.mark.parametrize(
    ("response", "kind", "detail"),
    [
        (
            answer(b'{"error":{"message":"the queue is full"}}', status=b"429 Too Many"),
            "status 429",
            "the queue is full",
        ),
        (answer(b"oh no", status=b"500 No"), "status 500", "oh no"),
        (answer(b"", status=b"404 No"), "status 404", "(no explanation)"),
        (answer(b"data: {oops\n\n"), "malformed stream", "an event that is no JSON: '{oops'"),
        (answer(b"data: [1]\n\n"), "malformed stream", "an event that is no object: '[1]'"),
        (answer(b'data: {"a":1}\n\n'), "malformed stream", "choices is None"),
        (answer(b"<html>\n"), "malformed stream", "a line that is no server-sent event: '<html>'"),
        (
            answer(CHUNK + b'data: {"error":{"message":"it broke"}}\n\n'),
            "malformed stream",
            "the server reports an error in the stream: it broke",
        ),
        (
            answer(CHUNK + DONE),
            "malformed stream",
            "[DONE] before any event with a finish reason",
        ),
        (answer(CHUNK), "early close", "the stream ended after 1 events, unfinished"),
        (answer(CHUNK, promised=9999), "early close", "peer closed connection"),
        (b"", "early close", "Server disconnected without sending a response."),
    ],
)
def test_an_error_of_the_server_is_named(response: bytes, kind: str, detail: str) -> None:
    with responding(response) as url:
        done = send(url)
    assert done.failure is not None
    assert done.failure.kind == kind
    assert done.failure.detail.startswith(detail)


def test_a_refused_connection_is_a_failure_and_no_exception() -> None:
    done = send("http://127.0.0.1:9")
    assert done.failure is not None
    assert done.failure.kind == "no connection"


def test_tokens_that_the_server_does_not_report_are_unknown() -> None:
    with responding(answer(CHUNK + b": ping\n\n" + CHUNK + LAST + DONE)) as url:
        done = send(url)
    assert done.failure is None
    assert done.text == "hihi"
    assert done.usage.num_output_tokens is None
    assert done.tpot is None
    assert len(done.event_times) == 3  # the end counts, the comment does not


def test_an_event_ends_at_a_line_feed_only() -> None:
    event = 'data: {"choices":[{"delta":{"content":"a\u2028b"}}]}\r\n\r\n'.encode()
    with responding(answer(event + LAST + DONE)) as url:
        done = send(url)
    assert (done.failure, done.text) == (None, "a\u2028b")


def test_reasoning_counts_as_output() -> None:
    piece = BACKENDS["openai-chat"].parse_event(
        {"choices": [{"delta": {"reasoning_content": "hm", "content": None}}], "usage": None}
    )
    assert piece.text == "hm"
