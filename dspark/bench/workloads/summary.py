"""An arm's trials, summed up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.trial import (
    EngineCounts,
    Trial,
    accept_length,
    decode_speed,
    figures,
    speculation_of,
)
from engine.api import SpeculationStats

STAGES = ("plan", "draft", "verify", "commit", "context")
REST = "rest"  # of a trial's time: events, the scheduler's release, the driver's own loop


@dataclass(frozen=True, slots=True)
class CategorySummary:
    """One kind of prompt within an arm."""

    num_prompts: int
    accept_length: float
    decode_tokens_per_s: tuple[float, ...]  # by trial


@dataclass(frozen=True, slots=True)
class StageShare:
    """Where the host was during a share of the trials' time, prompts' steps included.

    Host time: on a device that works on its own, a stage's work may be waited for in the next.
    """

    percent: float
    ms_per_step: float


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """All trials of one arm. `by_trial` maps a figure's name to its value in each."""

    name: str
    by_trial: Mapping[str, tuple[float, ...]]
    speculation: SpeculationStats  # of all trials together
    stages: Mapping[str, StageShare]
    categories: Mapping[str, CategorySummary]

    def spread(self, figure: str) -> Spread:
        return Spread.of(self.by_trial[figure])

    @property
    def accept_length(self) -> float:
        return accept_length(self.speculation)

    @property
    def accepted_percent_per_position(self) -> tuple[float, ...]:
        """Share of all rounds in which the draft token at this position, from 0, stood."""
        counts, rounds = self.speculation.accept_counts, self.speculation.num_rounds
        positions = range(1, len(counts))
        return tuple(100 * sum(counts[position:]) / rounds for position in positions if rounds)

    def values(self) -> dict[str, object]:
        """Everything, JSON-ready."""
        return {
            **{name: self.spread(name).values() for name in self.by_trial},
            "accept_length_counts": list(self.speculation.accept_counts),
            "accepted_percent_per_position": list(self.accepted_percent_per_position),
            "stages": {
                name: {"percent": share.percent, "ms_per_step": share.ms_per_step}
                for name, share in self.stages.items()
            },
            "categories": {
                name: {
                    "prompts": category.num_prompts,
                    "accept_length": category.accept_length,
                    "decode_tokens_per_s": Spread.of(category.decode_tokens_per_s).values(),
                }
                for name, category in self.categories.items()
            },
        }


def sum_up(name: str, trials: Sequence[Trial]) -> ArmSummary:
    """What all trials of one arm say."""
    each = [figures(trial) for trial in trials]
    return ArmSummary(
        name=name,
        by_trial={figure: tuple(values[figure] for values in each) for figure in each[0]},
        speculation=speculation_of([run for trial in trials for run in trial.runs]),
        stages=_stages(trials),
        categories={
            category: _category(trials, category)
            for category in dict.fromkeys(trials[0].categories)
        },
    )


def _stages(trials: Sequence[Trial]) -> dict[str, StageShare]:
    total = sum(trial.seconds for trial in trials)
    counts = EngineCounts.total([trial.counts for trial in trials])
    seconds = {stage: counts.stage_seconds.get(stage, 0.0) for stage in STAGES}
    seconds[REST] = max(0.0, total - sum(seconds.values()))
    return {
        stage: StageShare(percent=100 * spent / total, ms_per_step=1000 * spent / counts.num_steps)
        for stage, spent in seconds.items()
    }


def _category(trials: Sequence[Trial], category: str) -> CategorySummary:
    by_trial = [trial.of_category(category) for trial in trials]
    return CategorySummary(
        num_prompts=len(by_trial[0]),
        accept_length=accept_length(speculation_of([run for runs in by_trial for run in runs])),
        decode_tokens_per_s=tuple(decode_speed(runs) for runs in by_trial),
    )
