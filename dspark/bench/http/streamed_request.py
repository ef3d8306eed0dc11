"""One streamed request, as its client sees it."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from dspark.bench.http.backends import Backend, Piece, StreamBroken, Usage

_DONE = "[DONE]"
_MOST_SAID = 200  # characters of a server's words that are kept


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no answer: a kind that can be counted, and the case at hand."""

    kind: str
    detail: str


@dataclass(slots=True)
class Call:
    """One request's life; times in seconds on one clock. It has failed if `failure` is set."""

    prompt: int  # place in the workload, 0-based
    started_at: float
    event_times: list[float] = field(default_factory=list)  # of events that carry text or the end
    text: str = ""
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    failure: Failure | None = None

    @property
    def ttft(self) -> float:
        """Time to the first event."""
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


async def call(
    client: httpx.AsyncClient,
    backend: Backend,
    body: Mapping[str, object],
    *,
    prompt: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Call:
    """Ask, and read the answer to its end. Never raises for what a server can do wrong."""
    done = Call(prompt, clock())
    try:
        async with client.stream("POST", backend.path, json=dict(body)) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                done.failure = Failure(f"status {response.status_code}", words_of(response.text))
                return done
            await _read(response, backend, done, clock)
    except StreamBroken as error:
        done.failure = Failure("malformed stream", str(error))
    except httpx.HTTPError as error:
        done.failure = transport_failure(error)
    return done


async def _read(
    response: httpx.Response, backend: Backend, done: Call, clock: Callable[[], float]
) -> None:
    """Raises StreamBroken or httpx.HTTPError."""
    async for data in _data_lines(response):
        if data == _DONE:
            if done.finish_reason is None:
                raise StreamBroken(f"{_DONE} before any event with a finish reason")
            return
        piece = backend.piece(_event(data))
        _note(piece, done, clock)
    if done.finish_reason is None:
        done.failure = Failure(
            "early close", f"the stream ended after {len(done.event_times)} events, unfinished"
        )


def _note(piece: Piece, done: Call, clock: Callable[[], float]) -> None:
    if piece.text or (piece.finish_reason is not None and done.finish_reason is None):
        done.event_times.append(clock())
    done.text += piece.text
    done.finish_reason = piece.finish_reason or done.finish_reason
    done.usage = piece.usage or done.usage


async def _data_lines(response: httpx.Response) -> AsyncIterator[str]:
    """What stands after `data:`; comments and other fields of server-sent events are passed by."""
    async for raw in _lines(response):
        line = raw.decode(errors="replace")
        if line.startswith("data:"):
            yield line[len("data:") :].strip()
        elif line and not line.startswith((":", "event:", "id:", "retry:")):
            raise StreamBroken(f"a line that is no server-sent event: {line[:_MOST_SAID]!r}")


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Lines as server-sent events have them: httpx's own end at U+2028 too, and cost more."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


def _event(data: str) -> Mapping[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        raise StreamBroken(f"an event that is no JSON: {data[:_MOST_SAID]!r}") from None
    if not isinstance(event, Mapping):
        raise StreamBroken(f"an event that is no object: {data[:_MOST_SAID]!r}")
    if event.get("error") is not None:
        raise StreamBroken(f"the server reports an error in the stream: {words_of(data)}")
    return event


def words_of(text: str) -> str:
    """A server's own explanation: the message of an error body, or how the text begins."""
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = text
    return " ".join(str(message).split())[:_MOST_SAID] or "(no explanation)"


def transport_failure(error: httpx.HTTPError) -> Failure:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return Failure("no connection", str(error) or type(error).__name__)
        case httpx.TimeoutException():
            return Failure("timeout", f"nothing heard for too long ({type(error).__name__})")
        case httpx.RemoteProtocolError() | httpx.ReadError():
            return Failure("early close", str(error) or type(error).__name__)
    return Failure("transport", f"{type(error).__name__}: {error}")
