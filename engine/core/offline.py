"""Runs requests in the calling thread and times them, for benchmarks and training."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from engine.api import Finish, Request
from engine.core.engine_core import EngineCore
from engine.errors import RequestFailed


@dataclass(slots=True)
class RequestRun:
    """Records one request as its caller sees it; times in seconds on one clock."""

    request: Request
    started_at: float
    event_times: list[float] = field(default_factory=list)
    event_sizes: list[int] = field(default_factory=list)  # tokens of each event
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def ended_at(self) -> float:
        return self.event_times[-1]

    @property
    def ttft(self) -> float:
        """Return the time to first token."""
        return self.event_times[0] - self.started_at

    @property
    def tpot(self) -> float | None:
        """Return the time per output token after the first; None with only one event."""
        rest = sum(self.event_sizes[1:])
        return (self.event_times[-1] - self.event_times[0]) / rest if rest else None

    @property
    def inter_event_times(self) -> list[float]:
        """Return the times between events (ITL of a stream; it counts events, not tokens)."""
        return [b - a for a, b in zip(self.event_times, self.event_times[1:], strict=False)]


def drive(engine: EngineCore, requests: Sequence[Request], *, concurrency: int) -> list[RequestRun]:
    """Run all requests, at most `concurrency` at a time; return the runs in the given order.

    Raises RequestRejected when one cannot be served, RequestFailed when one ends with an error,
    and what a step observer raised.
    """
    ended = drive_each(engine, requests, concurrency=concurrency)
    runs = {run.request.request_id: run for run in ended}
    return [runs[request.request_id] for request in requests]


def drive_each(
    engine: EngineCore, requests: Sequence[Request], *, concurrency: int
) -> Iterator[RequestRun]:
    """Run all requests as `drive` does; yield each run when it ends."""
    waiting = list(reversed(requests))
    running: dict[str, RequestRun] = {}
    while waiting or not engine.is_idle:
        with torch.inference_mode():  # not while the caller runs
            while waiting and len(running) < concurrency:
                request = waiting.pop()
                running[request.request_id] = RequestRun(request, time.perf_counter())
                engine.add(request)
            events = engine.step()
        if engine.observer_failure is not None:
            raise engine.observer_failure  # its record would have a gap
        for event in events:
            run = running[event.request_id]
            run.event_times.append(time.perf_counter())
            run.event_sizes.append(len(event.token_ids))
            run.token_ids += event.token_ids
            run.finish = event.finish
            if event.finish is not None and event.finish.error is not None:
                raise RequestFailed(event.finish.error)
            if event.finish is not None:
                yield running.pop(event.request_id)
