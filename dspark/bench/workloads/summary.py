"""Summarises the trials of an arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.trial import (
    EngineCounts,
    Trial,
    accept_length,
    accept_rates,
    decode_speed,
    speculation_of,
    trial_metrics,
)
from engine.api import SpeculationStats

STAGES = ("plan", "draft", "verify", "commit", "context")
REST = "rest"  # the other time of a trial: events, release of pages, the driving loop


@dataclass(frozen=True, slots=True)
class CategorySummary:
    """One category of prompts within an arm."""

    num_prompts: int
    accept_length: float
    decode_tokens_per_s: tuple[float, ...]  # by trial


@dataclass(frozen=True, slots=True)
class StageShare:
    """Host time of a stage over all steps of the trials, prefill included.

    On an asynchronous device the wait for a stage's work may fall into the next stage.
    """

    percent: float
    ms_per_step: float


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """All trials of one arm; by_trial maps the name of a metric to its value in each."""

    name: str
    by_trial: Mapping[str, tuple[float, ...]]
    speculation: SpeculationStats  # of all trials together
    stages: Mapping[str, StageShare]
    categories: Mapping[str, CategorySummary]

    def spread(self, metric: str) -> Spread:
        return Spread.of(self.by_trial[metric])

    @property
    def accept_length(self) -> float:
        return accept_length(self.speculation)

    @property
    def accepted_percent_per_position(self) -> tuple[float, ...]:
        """Percentage of rounds in which the draft token at each position was accepted."""
        return tuple(100 * rate for rate in accept_rates(self.speculation))

    def values(self) -> dict[str, object]:
        """Return all numbers, JSON-ready."""
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
    """Summarise all trials of one arm."""
    each = [trial_metrics(trial) for trial in trials]
    return ArmSummary(
        name=name,
        by_trial={metric: tuple(values[metric] for values in each) for metric in each[0]},
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
