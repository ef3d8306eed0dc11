"""Records each HTTP request for logs, metrics and traces; never prompts or outputs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine import Finish
from engine.observability.observers import Observers

_TRACE_HEADERS = ("traceparent", "tracestate")  # https://www.w3.org/TR/trace-context


@dataclass(frozen=True, slots=True)
class CompletionRecord:
    """One finished completion."""

    submitted_at: float  # seconds since the epoch, when the engine got the request
    finish: Finish


@dataclass(frozen=True, slots=True)
class AbortedCompletion:
    """One completion cancelled by a disconnect, a time limit or the failure of another."""

    num_prompt_tokens: int
    num_output_tokens: int  # received from the engine


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request. Its route adds completions; RequestRecorder adds status and seconds."""

    request_id: str
    client: str
    method: str
    path: str
    started_at: float  # seconds since the epoch
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 500  # also for a client that has disconnected
    seconds: float = 0.0
    completions: list[CompletionRecord] = field(default_factory=list)
    aborted: list[AbortedCompletion] = field(default_factory=list)

    def add(self, submitted_at: float, finish: Finish) -> None:
        self.completions.append(CompletionRecord(submitted_at, finish))


class RequestRecorder:
    """Records every request in `request.state.record` and passes the record to the listeners.

    A disconnect or a failed stream leaves its status in the request's state.
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

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
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
