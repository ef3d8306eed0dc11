"""Arms of a comparison take turns, so that a machine that changes its mind treats them alike."""

import dataclasses
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dspark.bench.workloads.trial import Trial, Workload, run_trial
from engine.core.engine_core import EngineCore

Report = Callable[[str], None]  # told what begins now

_WARM_UP_TOKENS = 16
_WARM_UP_REQUESTS = 2


def _nothing() -> None:
    """For an arm that needs no switch."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the workload. Arms may share an engine; `switch` then makes it this one."""

    name: str
    engine: EngineCore
    switch: Callable[[], object] = _nothing

    def run(self, workload: Workload) -> Trial:
        self.switch()
        self.engine.flush_cache()
        return run_trial(self.engine, workload)


class TrialRunner(Protocol):
    """An arm, however it comes to its tokens."""

    @property
    def name(self) -> str: ...

    def run(self, workload: Workload) -> Trial:
        """Once, without anything cached from before."""
        ...


def run_in_turns(
    arms: Sequence[TrialRunner], workload: Workload, *, trials: int, report: Report
) -> Mapping[str, list[Trial]]:
    """Every arm `trials` times, by the arm's name: A B, B A, A B, ... after a warm-up of each.

    One stream changes arms after every prompt, so that they are seconds apart: memory can be a
    third slower from one minute to the next. Several would run dry at the end of each part, and
    change arms after all prompts.

    Each turn begins without cached prefixes: the second run of a prompt would otherwise be a
    different, shorter one. Raises RequestRejected when a request cannot be served.
    """
    for arm in arms:
        report(f"warm-up: {arm.name}")
        _run(arm, _warm_up(workload))
    done: dict[str, list[Trial]] = {arm.name: [] for arm in arms}
    parts = _parts(workload) if len(arms) > 1 else [workload]
    for trial in range(trials):
        turns: dict[str, list[Trial]] = {arm.name: [] for arm in arms}
        for turn, part in enumerate(parts):
            for arm in arms if (trial + turn) % 2 == 0 else reversed(arms):
                if turn == 0:
                    report(f"trial {trial + 1} of {trials}: {arm.name}")
                turns[arm.name].append(_run(arm, part))
        for arm in arms:
            done[arm.name].append(Trial.joined(turns[arm.name]))
    return done


def _parts(workload: Workload) -> list[Workload]:
    """What an arm runs in one turn."""
    if workload.concurrency > 1:
        return [workload]
    return [dataclasses.replace(workload, prompts=(prompt,)) for prompt in workload.prompts]


def num_reports(*, num_arms: int, trials: int) -> int:
    """How often `run_in_turns` reports."""
    return num_arms * (1 + trials)


def _run(arm: TrialRunner, workload: Workload) -> Trial:
    gc.collect()  # now rather than in the middle of somebody's decode step
    return arm.run(workload)


def _warm_up(workload: Workload) -> Workload:
    """At least as many requests as run at once: buffers then have the sizes they will have."""
    tokens = min(workload.params.max_new_tokens, _WARM_UP_TOKENS)
    return dataclasses.replace(
        workload,
        prompts=workload.prompts[: max(_WARM_UP_REQUESTS, workload.concurrency)],
        params=dataclasses.replace(workload.params, max_new_tokens=tokens),
    )
