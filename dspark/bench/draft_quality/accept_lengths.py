"""Measures accept length and acceptance rates of a draft, by prompt set."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.bench.report.columns import columns
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.trial import (
    Workload,
    accept_length,
    accept_rates,
    run_trial,
    speculation_of,
)
from engine.api import SpeculationStats
from engine.build import Built
from engine.core.offline import RequestRun
from engine.errors import LoadError

ALL = "all"


@dataclass(frozen=True, slots=True)
class SetResult:
    """One prompt set at one temperature."""

    prompt_set: str
    temperature: float
    num_prompts: int
    num_output_tokens: int
    speculation: SpeculationStats

    @property
    def accept_length(self) -> float:
        """Mean tokens per round, including the bonus."""
        return accept_length(self.speculation)

    @property
    def accept_rates(self) -> tuple[float, ...]:
        """By position from 0, the share of rounds that accepted the block up to it."""
        return accept_rates(self.speculation)

    def values(self) -> dict[str, object]:
        return {
            "prompt_set": self.prompt_set,
            "temperature": self.temperature,
            "prompts": self.num_prompts,
            "output_tokens": self.num_output_tokens,
            "rounds": self.speculation.num_rounds,
            "accept_len": self.accept_length,
            **{f"accept_rate@{k}": rate for k, rate in enumerate(self.accept_rates)},
            "accept_counts": list(self.speculation.accept_counts),
        }


@dataclass(frozen=True, slots=True)
class AcceptLengths:
    """Results of every set and of all sets, at each temperature."""

    results: tuple[SetResult, ...]
    block_size: int

    @property
    def holds(self) -> bool:
        return True

    def lines(self) -> list[str]:
        rates = [f"accept_rate@{k}" for k in range(self.block_size)]
        rows: list[tuple[str, ...]] = [
            ("prompt set", "temperature", "prompts", "rounds", "accept_len", *rates)
        ]
        for result in self.results:
            shares = [f"{rate:.3f}" for rate in result.accept_rates]
            shares += ["-"] * (self.block_size - len(shares))
            row = (f"{result.temperature:g}", str(result.num_prompts))
            rounds = str(result.speculation.num_rounds)
            rows.append((result.prompt_set, *row, rounds, f"{result.accept_length:.3f}", *shares))
        return columns(rows)

    def values(self) -> Mapping[str, object]:
        greedy = next(r for r in self.results if r.prompt_set == ALL)
        return {
            "block_size": self.block_size,
            "accept_length_mean": greedy.accept_length,
            "results": [result.values() for result in self.results],
        }


def measure_accept_lengths(
    built: Built, workload: Workload, *, temperatures: Sequence[float], report: Report
) -> AcceptLengths:
    """Run the workload once at each temperature. Reports once for each.

    Raises LoadError without a draft, and RequestRejected for a request that cannot be served.
    """
    if built.draft is None:
        raise LoadError("speculative.algorithm: found none; accepted: a draft to evaluate")
    results: list[SetResult] = []
    for temperature in temperatures:
        report(f"temperature {temperature:g}")
        params = dataclasses.replace(workload.params, temperature=temperature)
        built.engine.flush_cache()
        trial = run_trial(built.engine, dataclasses.replace(workload, params=params))
        for name in dict.fromkeys(trial.categories):
            results.append(_result(name, temperature, trial.of_category(name)))
        results.append(_result(ALL, temperature, trial.runs))
    return AcceptLengths(tuple(results), built.engine.info.block_size)


def _result(name: str, temperature: float, runs: Sequence[RequestRun]) -> SetResult:
    tokens = sum(len(run.token_ids) for run in runs)
    return SetResult(name, temperature, len(runs), tokens, speculation_of(runs))
