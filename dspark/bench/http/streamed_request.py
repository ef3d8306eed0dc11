"""Sends one streamed request and records its events, usage and failure."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from dspark.bench.http.backends import Backend, StreamError, StreamEvent, Usage

_DONE = "[DONE]"
_MAX_MESSAGE = 200  # characters kept of an error message


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed: a kind to count, and the detail of this case."""

    kind: str
    detail: str


@dataclass(slots=True)
class RequestRecord:
    """Times of one request in seconds on one clock; it failed if `failure` is set."""

    prompt: int  # index in the workload
    started_at: float
    event_times: list[float] = field(default_factory=list)  # of events that carry text or the end
    text: str = ""
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    failure: Failure | None = None

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.event_times[0] - self.started_at

    @property
    def e2e(self) -> float:
        return self.event_times[-1] - self.started_at

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None where the tokens are unknown or one."""
        tokens = self.usage.num_output_tokens
        if tokens is None or tokens < 2:
            return None
        return (self.event_times[-1] - self.event_times[0]) / (tokens - 1)

    @property
    def inter_event_times(self) -> list[float]:
        return [b - a for a, b in zip(self.event_times, self.event_times[1:], strict=False)]


async def send_request(
    client: httpx.AsyncClient,
    backend: Backend,
    body: Mapping[str, object],
    *,
    prompt: int,
    clock: Callable[[], float] = time.perf_counter,
) -> RequestRecord:
    """Send a request and read its stream to the end; server errors become a failure."""
    record = RequestRecord(prompt, clock())
    try:
        async with client.stream("POST", backend.path, json=dict(body)) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                record.failure = Failure(
                    f"status {response.status_code}", error_message(response.text)
                )
                return record
            await _read(response, backend, record, clock)
    except StreamError as error:
        record.failure = Failure("malformed stream", str(error))
    except httpx.HTTPError as error:
        record.failure = transport_failure(error)
    return record


async def _read(
    response: httpx.Response, backend: Backend, record: RequestRecord, clock: Callable[[], float]
) -> None:
    """Raises StreamError or httpx.HTTPError."""
    async for data in _data_lines(response):
        if data == _DONE:
            if record.finish_reason is None:
                raise StreamError(f"{_DONE} before any event with a finish reason")
            return
        _add_event(backend.parse_event(_event(data)), record, clock)
    if record.finish_reason is None:
        record.failure = Failure(
            "early close", f"the stream ended after {len(record.event_times)} events, unfinished"
        )


def _add_event(event: StreamEvent, record: RequestRecord, clock: Callable[[], float]) -> None:
    if event.text or (event.finish_reason is not None and record.finish_reason is None):
        record.event_times.append(clock())
    record.text += event.text
    record.finish_reason = event.finish_reason or record.finish_reason
    record.usage = event.usage or record.usage


async def _data_lines(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the data fields of server-sent events; skips comments and other fields."""
    async for raw in _lines(response):
        line = raw.decode(errors="replace")
        if line.startswith("data:"):
            yield line[len("data:") :].strip()
        elif line and not line.startswith((":", "event:", "id:", "retry:")):
            raise StreamError(f"a line that is no server-sent event: {line[:_MAX_MESSAGE]!r}")


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield lines that end at a line feed; httpx's own also end at U+2028, and are slower."""
    remainder = b""
    async for chunk in response.aiter_bytes():
        *lines, remainder = (remainder + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if remainder:
        yield remainder


def _event(data: str) -> Mapping[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        raise StreamError(f"an event that is no JSON: {data[:_MAX_MESSAGE]!r}") from None
    if not isinstance(event, Mapping):
        raise StreamError(f"an event that is no object: {data[:_MAX_MESSAGE]!r}")
    if event.get("error") is not None:
        raise StreamError(f"the server reports an error in the stream: {error_message(data)}")
    return event


def error_message(text: str) -> str:
    """Return the message of an error body, or the beginning of the text."""
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = text
    return " ".join(str(message).split())[:_MAX_MESSAGE] or "(no explanation)"


def transport_failure(error: httpx.HTTPError) -> Failure:
    """Classify an error of the connection."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return Failure("no connection", str(error) or type(error).__name__)
        case httpx.TimeoutException():
            return Failure("timeout", f"no data within the timeout ({type(error).__name__})")
        case httpx.RemoteProtocolError() | httpx.ReadError():
            return Failure("early close", str(error) or type(error).__name__)
    return Failure("transport", f"{type(error).__name__}: {error}")
