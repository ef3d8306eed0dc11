"""Reports all trials of all servers: table, JSON values and notes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dspark.bench.http.interleaved import ServedTrials
from dspark.bench.http.request_metrics import ServedTrial, trial_metrics
from dspark.bench.report.columns import Row, columns, number
from dspark.bench.report.statistics import MOMENTS, Spread, ratio, values_of

_TOTALS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "duration_s": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_generated_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total token throughput (tok/s)",
    "peak_concurrent_requests": "Peak concurrent requests",
    "client_cpu_percent": "CPU of this client (% of a core)",
    "client_cpu_us_per_event": "CPU of this client (µs an event)",
}
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
_MOMENT_NAMES = {"mean": "Mean", "p50": "Median", "p95": "P95", "p99": "P99"}
# Metrics compared with those of the first server.
_COMPARED = ("output_throughput", "ttft_ms_p50", "tpot_ms_p50", "e2el_ms_p50")
_MOST_FAILURES = 5  # lines; the JSON has all


@dataclass(frozen=True, eq=False)
class ServedReport:
    """The outcome; `holds` is false if a server answered no request."""

    served: ServedTrials

    @property
    def holds(self) -> bool:
        return all(any(t.answered for t in trials) for trials in self.served.trials.values())

    @cached_property
    def by_trial(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        """Metrics that every trial has: server -> metric -> value by trial."""
        return {name: _by_trial(trials) for name, trials in self.served.trials.items()}

    def spread(self, server: str, metric: str) -> Spread | None:
        values = self.by_trial[server].get(metric)
        return None if values is None else Spread.of(values)

    def ratio(self, server: str, metric: str, base_server: str | None = None) -> Spread | None:
        """Return server / base server; the base is the first server by default."""
        values = self.by_trial[server].get(metric)
        base = self.by_trial[base_server or self._names[0]].get(metric)
        return ratio(values, base) if values and base else None

    def lines(self) -> list[str]:
        rows: list[Row] = [("", *self._names)]
        rows += [self._row(metric, label) for metric, label in _TOTALS.items()]
        for latency, label in _LATENCIES.items():
            rows += [
                self._row(f"{latency}_ms_{moment}", f"{_MOMENT_NAMES[moment]} {label} (ms)")
                for moment in MOMENTS
            ]
        return [*columns(rows), *self._ratio_lines(), *self.same_lines(), *self.failure_lines()]

    def values(self) -> dict[str, object]:
        return {
            "servers": {
                name: {
                    **self.served.servers[name],
                    **{metric: Spread.of(v).values() for metric, v in self.by_trial[name].items()},
                    "ratio_to_first": {f: values_of(self.ratio(name, f)) for f in _COMPARED},
                    "same_answers_as_first": self._same(name),
                    "failures": _failure_values(_failures(self.served.trials[name])),
                    "trials": [trial_metrics(t) for t in self.served.trials[name]],
                }
                for name in self._names
            }
        }

    def notes(self) -> list[str]:
        """Return the caveats of the table."""
        return [note for name in self._names for note in _notes(name, self.served.trials[name])]

    @property
    def _names(self) -> list[str]:
        return list(self.served.trials)

    def _row(self, metric: str, label: str) -> Row:
        return (label, *(number(self.spread(name, metric)) for name in self._names))

    def _ratio_lines(self) -> list[str]:
        if len(self._names) == 1:
            return []
        first, *others = self._names
        rows: list[Row] = [(f"ratio to {first}", *others)]
        for metric in _COMPARED:
            label = _label(metric)
            rows.append((label, *(number(self.ratio(name, metric)) for name in others)))
        return ["", *columns(rows)]

    def same_lines(self) -> list[str]:
        """Count the answers that equal those of the first server."""
        if len(self._names) == 1:
            return []
        first, *others = self._names
        lines = [""]
        for name in others:
            same, compared = self._same(name)
            what = f"answers of {name} equal to those of {first}, letter by letter"
            lines.append(f"{what}: {same} of {compared}")
        return lines

    def _same(self, name: str) -> tuple[int, int]:
        """Return the number of equal answers in the same trials, and of compared ones."""
        pairs = [
            (a.text, b.text)
            for ours, theirs in zip(
                self.served.trials[name], self.served.trials[self._names[0]], strict=True
            )
            for a, b in zip(ours.records, theirs.records, strict=True)
            if a.failure is None and b.failure is None
        ]
        return sum(a == b for a, b in pairs), len(pairs)

    def failure_lines(self) -> list[str]:
        """List the most frequent failures, if any."""
        lines: list[str] = []
        for name in self._names:
            found = _failures(self.served.trials[name])
            for (kind, detail), count in found.most_common(_MOST_FAILURES):
                lines.append(f"  {name}: {count} x {kind}: {detail}")
        return ["", "failed requests:", *lines] if lines else []


def _by_trial(trials: Sequence[ServedTrial]) -> dict[str, tuple[float, ...]]:
    each = [trial_metrics(trial) for trial in trials]
    shared = [metric for metric in each[0] if all(metric in metrics for metrics in each)]
    return {metric: tuple(metrics[metric] for metrics in each) for metric in shared}


def _label(metric: str) -> str:
    if metric in _TOTALS:
        return _TOTALS[metric]
    latency, _, moment = metric.split("_")
    return f"{_MOMENT_NAMES[moment]} {_LATENCIES[latency]}"


def _failures(trials: Iterable[ServedTrial]) -> Counter[tuple[str, str]]:
    return sum((trial.failures() for trial in trials), Counter[tuple[str, str]]())


def _failure_values(found: Counter[tuple[str, str]]) -> list[dict[str, object]]:
    return [{"kind": k, "detail": d, "count": count} for (k, d), count in found.most_common()]


def _notes(name: str, trials: Sequence[ServedTrial]) -> Iterable[str]:
    answered = [trial for trial in trials if trial.answered]
    if answered and not all(trial.has_counts for trial in answered):
        yield (
            f"{name} does not report usage for every answer: its tokens/s and TPOT are left out, "
            "because an event is not a token"
        )
    if len(answered) < len(trials):
        yield f"{name} answered nothing in {len(trials) - len(answered)} of {len(trials)} trials"
    cached = sum(trial.num_cached_tokens for trial in trials)
    if cached:
        yield f"{name} took {cached} input tokens from its prefix cache"
    elif answered and not all(trial.is_known_to_be_cold for trial in trials):
        yield (
            f"{name} does not confirm an empty prefix cache between trials: if it has "
            "one, switch it off or use --vary-prompts"
        )
