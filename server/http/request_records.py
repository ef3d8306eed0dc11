"""What is kept of an HTTP request for its end: who asked, how it went; never what was said."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine import Finish
from engine.observability.observers import Observers

_TRACE_HEADERS = ("traceparent", "tracestate")  # https://www.w3.org/TR/trace-context


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One answer that came to its end."""

    asked_at: float  # seconds since the epoch, when its prompt was handed to the engine
    finish: Finish


@dataclass(frozen=True, slots=True)
class GivenUp:
    """One answer that was cancelled: its client left, a limit was reached, or another failed."""

    num_prompt_tokens: int
    num_output_tokens: int  # that the engine had told of


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request. Its route adds the answers; the middleware fills in how it ended."""

    request_id: str
    client: str
    method: str
    path: str
    started_at: float  # seconds since the epoch
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 500  # what the client saw or would have seen; of an answer that never began
    seconds: float = 0.0
    answers: list[AnswerRecord] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)

    def add(self, asked_at: float, finish: Finish) -> None:
        self.answers.append(AnswerRecord(asked_at, finish))


class Records:
    """Keeps a record of every request, in `request.state.record`, and shows it to whoever listens.

    A lost client and a broken stream have left their status in the request's state.
    """

    def __init__(
        self, app: ASGIApp, *, listeners: Sequence[Callable[[RequestRecord], None]]
    ) -> None:
        self._app = app
        self._listeners = Observers(listeners)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        record = state["record"] = _new_record(scope, state["request_id"])
        started = time.perf_counter()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            record.status = state.get("status", record.status)
            record.seconds = time.perf_counter() - started
            self._listeners.notify(record)


def _new_record(scope: Scope, request_id: str) -> RequestRecord:
    headers = Headers(scope=scope)
    address = scope.get("client")
    return RequestRecord(
        request_id=request_id,
        client=address[0] if address else "unknown",
        method=scope["method"],
        path=scope["path"],
        started_at=time.time(),
        trace_headers={name: headers[name] for name in _TRACE_HEADERS if name in headers},
    )
