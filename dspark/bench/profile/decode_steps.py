"""Records the host time of decode steps of a running engine, part by part."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.timing import marked_calls
from dspark.bench.workloads.trial import EngineCounts, Workload
from engine.api import EngineSnapshot
from engine.build import Built

# In the order of a step. The engine's "verify" is split into the target forward and the work
# around it; "rest" is release, metrics and events.
PARTS = ("plan", "draft", "target forward", "batch and verification", "commit", "context", "rest")


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Steps in which every running request was past its prompt and got tokens."""

    parts: Mapping[str, tuple[float, ...]]  # seconds, step by step
    steps: tuple[float, ...]  # seconds of the whole step

    def ms(self, part: str) -> Spread:
        return Spread.of([1000 * value for value in self.parts[part]])

    @property
    def step_ms(self) -> Spread:
        return Spread.of([1000 * value for value in self.steps])


def record_decode_steps(
    built: Built, workload: Workload, *, clock: Callable[[], float] = time.perf_counter
) -> DecodeSteps:
    """Run the workload. Raises RequestRejected for a request that cannot be served."""
    engine = built.engine
    waiting = list(reversed(workload.requests()))
    started: dict[str, bool] = {}  # running requests: whether they have a token
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    steps: list[float] = []
    with torch.inference_mode(), marked_calls(built.runner, "forward", clock) as forwards:
        while waiting or not engine.is_idle:
            while waiting and len(started) < workload.concurrency:
                request = waiting.pop()
                started[request.request_id] = False
                engine.add(request)
            before = engine.snapshot()
            forwards.clear()
            began = clock()
            events = engine.step()
            seconds = clock() - began
            if all(started.values()) and {e.request_id for e in events} == set(started):
                steps.append(seconds)
                spent = _parts(
                    before, engine.snapshot(), sum(end - begin for begin, end in forwards), seconds
                )
                for part, value in spent.items():
                    parts[part].append(value)
            for event in events:
                started[event.request_id] = True
                if event.finish is not None:
                    del started[event.request_id]
    return DecodeSteps({part: tuple(values) for part, values in parts.items()}, tuple(steps))


def _parts(
    before: EngineSnapshot, after: EngineSnapshot, forward: float, seconds: float
) -> dict[str, float]:
    stages = dict(EngineCounts.between(before, after).stage_seconds)
    verify = stages.pop("verify")
    spent = {**stages, "target forward": forward, "batch and verification": verify - forward}
    spent["rest"] = seconds - sum(spent.values())
    return {part: spent.get(part, 0.0) for part in PARTS}
