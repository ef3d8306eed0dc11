"""All trials of all servers: the table for people, the values for programs, what to know."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dspark.bench.http.figures import ServedTrial, served_figures
from dspark.bench.http.turns import Turns
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
# By these a server is held against the first one.
_COMPARED = ("output_throughput", "ttft_ms_p50", "tpot_ms_p50", "e2el_ms_p50")
_MOST_FAILURES = 5  # lines; the JSON has all


@dataclass(frozen=True, eq=False)
class ServedReport:
    """What came of it; `holds` is false when a server answered nothing at all."""

    turns: Turns

    @property
    def holds(self) -> bool:
        return all(any(t.answered for t in trials) for trials in self.turns.trials.values())

    @cached_property
    def by_trial(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        """Server and figure -> its value in each trial; figures that every trial has."""
        return {name: _by_trial(trials) for name, trials in self.turns.trials.items()}

    def spread(self, server: str, figure: str) -> Spread | None:
        values = self.by_trial[server].get(figure)
        return None if values is None else Spread.of(values)

    def ratio(self, server: str, figure: str) -> Spread | None:
        """server / first server."""
        values = self.by_trial[server].get(figure)
        base = self.by_trial[self._names[0]].get(figure)
        return ratio(values, base) if values and base else None

    def lines(self) -> list[str]:
        rows: list[Row] = [("", *self._names)]
        rows += [self._row(figure, label) for figure, label in _TOTALS.items()]
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
                    **self.turns.servers[name],
                    **{figure: Spread.of(v).values() for figure, v in self.by_trial[name].items()},
                    "ratio_to_first": {f: values_of(self.ratio(name, f)) for f in _COMPARED},
                    "same_answers_as_first": self._same(name),
                    "failures": _failure_values(_failures(self.turns.trials[name])),
                    "trials": [served_figures(t) for t in self.turns.trials[name]],
                }
                for name in self._names
            }
        }

    def notes(self) -> list[str]:
        """What a reader of the table must know."""
        return [note for name in self._names for note in _notes(name, self.turns.trials[name])]

    @property
    def _names(self) -> list[str]:
        return list(self.turns.trials)

    def _row(self, figure: str, label: str) -> Row:
        return (label, *(number(self.spread(name, figure)) for name in self._names))

    def _ratio_lines(self) -> list[str]:
        if len(self._names) == 1:
            return []
        first, *others = self._names
        rows: list[Row] = [(f"ratio to {first}", *others)]
        for figure in _COMPARED:
            label = _label(figure)
            rows.append((label, *(number(self.ratio(name, figure)) for name in others)))
        return ["", *columns(rows)]

    def same_lines(self) -> list[str]:
        """How many answers of the others are those of the first server."""
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
        """Answers equal to the first server's in the same trial, and how many were compared."""
        pairs = [
            (a.text, b.text)
            for ours, theirs in zip(
                self.turns.trials[name], self.turns.trials[self._names[0]], strict=True
            )
            for a, b in zip(ours.calls, theirs.calls, strict=True)
            if a.failure is None and b.failure is None
        ]
        return sum(a == b for a, b in pairs), len(pairs)

    def failure_lines(self) -> list[str]:
        """Why requests have failed, if some have."""
        lines: list[str] = []
        for name in self._names:
            found = _failures(self.turns.trials[name])
            for (kind, detail), count in found.most_common(_MOST_FAILURES):
                lines.append(f"  {name}: {count} x {kind}: {detail}")
        return ["", "failed requests:", *lines] if lines else []


def _by_trial(trials: Sequence[ServedTrial]) -> dict[str, tuple[float, ...]]:
    each = [served_figures(trial) for trial in trials]
    shared = [figure for figure in each[0] if all(figure in figures for figures in each)]
    return {figure: tuple(figures[figure] for figures in each) for figure in shared}


def _label(figure: str) -> str:
    if figure in _TOTALS:
        return _TOTALS[figure]
    latency, _, moment = figure.split("_")
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
            "for counting events is not counting tokens"
        )
    if len(answered) < len(trials):
        yield f"{name} answered nothing in {len(trials) - len(answered)} of {len(trials)} trials"
    cached = sum(trial.num_cached_tokens for trial in trials)
    if cached:
        yield f"{name} took {cached} input tokens from its prefix cache"
    elif answered and not all(trial.is_known_to_be_cold for trial in trials):
        yield (
            f"{name} does not say that it has dropped its prefix cache between trials: if it has "
            "one, switch it off or use --vary-prompts"
        )
