"""Runs the arms of a comparison interleaved, trial by trial."""

import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from dspark.bench.workloads.interleaving import (
    WARM_UP_TOKENS,
    Report,
    alternated,
    warm_up_width,
)
from dspark.bench.workloads.trial import Trial, Workload, run_trial
from engine.core.engine_core import EngineCore


@dataclass(frozen=True, slots=True)
class Arm:
    """An engine and the switch that selects this arm on it, for arms that share an engine."""

    name: str
    engine: EngineCore
    switch: Callable[[], object] = lambda: None

    def run(self, workload: Workload) -> Trial:
        self.switch()
        self.engine.flush_cache()
        return run_trial(self.engine, workload)


class TrialRunner(Protocol):
    """An arm of a comparison."""

    @property
    def name(self) -> str: ...

    def run(self, workload: Workload) -> Trial:
        """Run the workload once, with an empty prefix cache."""
        ...


def run_interleaved(
    arms: Sequence[TrialRunner], workload: Workload, *, trials: int, report: Report
) -> Mapping[str, list[Trial]]:
    """Warm up every arm, then run all trials in the order A B, B A, A B, ...; by arm name.

    One stream changes arms after every prompt, because memory bandwidth can drift by a third
    within minutes. Several streams change arms after all prompts, to stay full.

    Each turn starts with an empty prefix cache. Raises RequestRejected for a request that cannot
    be served.
    """
    for arm in arms:
        report(f"warm-up: {arm.name}")
        arm.run(_warm_up(workload))
    done: dict[str, list[Trial]] = {arm.name: [] for arm in arms}
    parts = _parts(workload) if len(arms) > 1 else [workload]
    with _frozen_heap():
        for trial in range(trials):
            turns: dict[str, list[Trial]] = {arm.name: [] for arm in arms}
            for turn, part in enumerate(parts):
                for arm in alternated(arms, trial + turn):
                    if turn == 0:
                        report(f"trial {trial + 1} of {trials}: {arm.name}")
                    gc.collect()  # only objects since the freeze
                    turns[arm.name].append(arm.run(part))
            for arm in arms:
                done[arm.name].append(Trial.joined(turns[arm.name]))
    return done


def _parts(workload: Workload) -> list[Workload]:
    """Split a workload into what an arm runs in one turn."""
    if workload.concurrency > 1:
        return [workload]
    return [dataclasses.replace(workload, prompts=(prompt,)) for prompt in workload.prompts]


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Exclude the objects of models and libraries from garbage collection during decode steps."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _warm_up(workload: Workload) -> Workload:
    """Return a short workload, as wide as the trials, so that buffers get their sizes."""
    tokens = min(workload.params.max_new_tokens, WARM_UP_TOKENS)
    return dataclasses.replace(
        workload,
        prompts=workload.prompts[: warm_up_width(workload.concurrency)],
        params=dataclasses.replace(workload.params, max_new_tokens=tokens),
    )
