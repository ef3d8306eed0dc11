"""Runs a workload once through an engine and computes its metrics."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Self

from dspark.bench.report.statistics import latency_ms
from dspark.bench.workloads.prompts import EncodedPrompt
from engine.api import (
    SOURCES,
    EngineSamplingParams,
    EngineSnapshot,
    Request,
    SourceStats,
    SpeculationStats,
    TokenMask,
)
from engine.core.engine_core import EngineCore
from engine.core.offline import RequestRun, drive


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of every trial."""

    prompts: tuple[EncodedPrompt, ...]
    params: EngineSamplingParams
    concurrency: int  # requests open at once
    make_mask: Callable[[], TokenMask] | None = None  # a factory of one mask per request

    def requests(self) -> list[Request]:
        return [
            Request(
                f"bench-{i}",
                prompt.token_ids,
                self.params,
                token_mask=self.make_mask() if self.make_mask is not None else None,
            )
            for i, prompt in enumerate(self.prompts)
        ]


_COUNTERS = ("num_steps", "num_cached_tokens", "num_withheld_draft_tokens", "num_preemptions")


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """Differences of an engine's counters over a trial."""

    num_steps: int = 0
    num_cached_tokens: int = 0
    num_withheld_draft_tokens: int = 0
    num_preemptions: int = 0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def between(cls, before: EngineSnapshot, after: EngineSnapshot) -> Self:
        stages = {
            stage: seconds - before.stage_seconds.get(stage, 0.0)
            for stage, seconds in after.stage_seconds.items()
        }
        counts = {name: getattr(after, name) - getattr(before, name) for name in _COUNTERS}
        return cls(**counts, stage_seconds=stages)

    @classmethod
    def total(cls, each: Sequence["EngineCounts"]) -> Self:
        stages: Counter[str] = Counter()
        for counts in each:
            stages.update(counts.stage_seconds)
        sums = {name: sum(getattr(counts, name) for counts in each) for name in _COUNTERS}
        return cls(**sums, stage_seconds=dict(stages))


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one run; runs are in the order of the workload's prompts."""

    runs: tuple[RequestRun, ...]
    categories: tuple[str, ...]  # of each run
    seconds: float  # from the first request in to the last event out
    counts: EngineCounts

    @classmethod
    def joined(cls, parts: Sequence["Trial"]) -> Self:
        """Join the parts of one workload; time between them does not count."""
        return cls(
            runs=tuple(chain.from_iterable(part.runs for part in parts)),
            categories=tuple(chain.from_iterable(part.categories for part in parts)),
            seconds=sum(part.seconds for part in parts),
            counts=EngineCounts.total([part.counts for part in parts]),
        )

    def of_category(self, category: str) -> list[RequestRun]:
        return [r for r, c in zip(self.runs, self.categories, strict=True) if c == category]


def run_trial(
    engine: EngineCore, workload: Workload, *, clock: Callable[[], float] = time.perf_counter
) -> Trial:
    """Run all requests. Raises RequestRejected for a request that cannot be served."""
    before = engine.snapshot()
    started = clock()
    runs = drive(engine, workload.requests(), concurrency=workload.concurrency)
    seconds = clock() - started
    categories = tuple(prompt.category for prompt in workload.prompts)
    counts = EngineCounts.between(before, engine.snapshot())
    return Trial(tuple(runs), categories, seconds, counts)


def trial_metrics(trial: Trial) -> dict[str, float]:
    """Return every metric of one trial; times in ms, rates in 1/s."""
    runs, seconds = trial.runs, trial.seconds
    num_input = sum(len(run.request.prompt_ids) for run in runs)
    num_output = sum(len(run.token_ids) for run in runs)
    return {
        "requests": len(runs),
        "input_tokens": num_input,
        "output_tokens": num_output,
        "cached_tokens": trial.counts.num_cached_tokens,
        "withheld_draft_tokens": trial.counts.num_withheld_draft_tokens,
        "preemptions": trial.counts.num_preemptions,
        "duration_s": seconds,
        "requests_per_s": len(runs) / seconds,
        "tokens_per_s": num_output / seconds,
        "total_tokens_per_s": (num_input + num_output) / seconds,
        "decode_tokens_per_s": decode_speed(runs),
        **latency_ms("ttft", [run.ttft for run in runs]),
        **latency_ms("tpot", [run.tpot for run in runs if run.tpot is not None]),
        **latency_ms("itl", [gap for run in runs for gap in run.inter_event_times]),
        **latency_ms("e2e", [run.ended_at - run.started_at for run in runs]),
        **_speculation(speculation_of(runs)),
    }


def decode_speed(runs: Sequence[RequestRun]) -> float:
    """Return tokens/s of a request after its first event; 0 without further events."""
    seconds = sum(run.ended_at - run.event_times[0] for run in runs)
    return sum(sum(run.event_sizes[1:]) for run in runs) / seconds if seconds > 0 else 0.0


def speculation_of(runs: Sequence[RequestRun]) -> SpeculationStats:
    """Return the summed speculation counters of all requests."""
    each = [run.finish.speculation for run in runs if run.finish is not None]
    assert len(each) == len(runs), "a request has not ended"
    counts = [0] * max(len(stats.accept_counts) for stats in each)
    for stats in each:
        for accepted, rounds in enumerate(stats.accept_counts):
            counts[accepted] += rounds
    return SpeculationStats(
        tuple(counts),
        sum(stats.num_draft_tokens for stats in each),
        {name: _total([s.sources[name] for s in each if name in s.sources]) for name in SOURCES},
    )


def _total(each: Sequence[SourceStats]) -> SourceStats:
    return SourceStats(
        sum(s.num_rounds for s in each),
        sum(s.num_draft_tokens for s in each),
        sum(s.num_accepted for s in each),
    )


def accept_length(stats: SpeculationStats) -> float:
    """Return the mean tokens per round, including the bonus; 1 without rounds."""
    return stats.mean_accept_length if stats.num_rounds else 1.0


def accept_rates(stats: SpeculationStats) -> tuple[float, ...]:
    """Return, by position from 0, the share of rounds that accepted the draft token there."""
    counts, rounds = stats.accept_counts, stats.num_rounds
    return tuple(sum(counts[k + 1 :]) / rounds for k in range(len(counts) - 1) if rounds)


def _speculation(stats: SpeculationStats) -> dict[str, float]:
    drafted = stats.num_draft_tokens
    return {
        "accept_length": accept_length(stats),
        "accept_rate_percent": 100 * stats.num_accepted / drafted if drafted else 0.0,
        "drafts": stats.num_rounds,
        "draft_tokens": drafted,
        "accepted_tokens": stats.num_accepted,
        **_by_source(stats),
    }


def _by_source(stats: SpeculationStats) -> dict[str, float]:
    """Return each source's share of the decode rounds, and its accept length."""
    num_rounds = sum(source.num_rounds for source in stats.sources.values())
    found = {}
    for name, source in stats.sources.items():
        found[f"{name}_rounds_percent"] = (
            100 * source.num_rounds / num_rounds if num_rounds else 0.0
        )
        if name != "target":
            rounds = max(1, source.num_rounds)
            found[f"{name}_accept_length"] = 1 + source.num_accepted / rounds
    return found
