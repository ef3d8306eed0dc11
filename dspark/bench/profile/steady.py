"""Where the host is during real rounds of the whole engine: step by step, prompts left out."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from dspark.bench.profile.timing import timed_method
from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.trial import Workload
from engine.api import EngineSnapshot
from engine.build import Built

# In the order of a step. "verify" of the engine's own clock is the target pass and what is
# around it, which are told apart here; "rest" is release, metrics and events.
PARTS = ("plan", "draft", "target forward", "batch and verification", "commit", "context", "rest")


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Steps in which every running request was past its prompt and got tokens."""

    parts: Mapping[str, tuple[float, ...]]  # seconds, step by step
    steps: tuple[float, ...]  # seconds of the whole step

    def ms(self, part: str) -> Spread:
        return Spread.of([1000 * value for value in self.parts[part]])

    @property
    def step_ms(self) -> Spread:
        return Spread.of([1000 * value for value in self.steps])


def record_steps(
    built: Built, workload: Workload, *, clock: Callable[[], float] = time.perf_counter
) -> SteadySteps:
    """Run the workload to its end. Raises RequestRejected when a request cannot be served."""
    engine = built.engine
    waiting = list(reversed(workload.requests()))
    started: dict[str, bool] = {}  # running requests: whether they have had a token
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    steps: list[float] = []
    with torch.inference_mode(), timed_method(built.runner, "forward") as forwards:
        while waiting or not engine.is_idle:
            while waiting and len(started) < workload.concurrency:
                request = waiting.pop()
                started[request.request_id] = False
                engine.add(request)
            before = engine.snapshot()
            forwards.clear()
            begun = clock()
            events = engine.step()
            seconds = clock() - begun
            if all(started.values()) and {e.request_id for e in events} == set(started):
                steps.append(seconds)
                spent = _parts(before, engine.snapshot(), sum(forwards), seconds)
                for part, value in spent.items():
                    parts[part].append(value)
            for event in events:
                started[event.request_id] = True
                if event.finish is not None:
                    del started[event.request_id]
    return SteadySteps({part: tuple(values) for part, values in parts.items()}, tuple(steps))


def _parts(
    before: EngineSnapshot, after: EngineSnapshot, forward: float, seconds: float
) -> dict[str, float]:
    stages = {
        stage: value - before.stage_seconds.get(stage, 0.0)
        for stage, value in after.stage_seconds.items()
    }
    verify = stages.pop("verify")
    spent = {**stages, "target forward": forward, "batch and verification": verify - forward}
    spent["rest"] = seconds - sum(spent.values())
    return {part: spent.get(part, 0.0) for part in PARTS}
