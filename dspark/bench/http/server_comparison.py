"""Compares servers that ran one at a time: tables, JSON values and notes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dspark.bench.http.interleaved import ServedTrials
from dspark.bench.http.isolated_servers import IsolatedPlan, IsolatedServer, StreamLoad
from dspark.bench.http.report import ServedReport
from dspark.bench.http.request_metrics import ServedTrial, trial_metrics
from dspark.bench.report.columns import Row, columns, number
from dspark.bench.report.statistics import Spread, ratio, values_of

_SPEED = "output_throughput"


@dataclass(frozen=True, slots=True)
class AddedTime:
    """Time that serving adds under one load, in percent, trial by trial."""

    to_engine: Spread  # HTTP, relative to the same engine driven in one process
    to_passes: Spread  # HTTP and scheduling, relative to the models' time in that process

    @classmethod
    def of(cls, server: IsolatedServer, load: StreamLoad) -> "AddedTime | None":
        """Return None if the server or the engine has no measured token rate."""
        speeds = [trial_metrics(trial).get(_SPEED) for trial in server.served[load]]
        engine = server.engine.get(load)
        if engine is None or not all(speeds):
            return None
        each = [1 / speed for speed in speeds if speed]
        return cls(
            _percent_above(each, [trial.seconds_per_token for trial in engine]),
            _percent_above(each, [trial.pass_seconds_per_token for trial in engine]),
        )


@dataclass(frozen=True, eq=False)
class ServerComparison:
    """The outcome; `holds` is false if a server answered no request of some load."""

    servers: Sequence[IsolatedServer]
    plan: IsolatedPlan

    @property
    def holds(self) -> bool:
        return all(report.holds for report in self.reports.values())

    @cached_property
    def reports(self) -> Mapping[StreamLoad, ServedReport]:
        about = {server.name: server.server_values for server in self.servers}
        return {
            load: ServedReport(ServedTrials({s.name: s.served[load] for s in self.servers}, about))
            for load in self.plan.loads
        }

    def lines(self) -> list[str]:
        lines: list[str] = []
        for load, report in self.reports.items():
            lines += [*columns(self._rows(load, report)), ""]
            if load.streams == 1:
                lines += [*columns(self._category_rows(load)), ""]
            lines += [line for line in (*report.same_lines(), *report.failure_lines()) if line]
            lines.append("")
        starts = (f"{s.name} {number(Spread.of(s.start_seconds))}" for s in self.servers)
        return [*lines, *self._added_lines(), f"seconds to start: {'; '.join(starts)}"]

    def values(self) -> dict[str, object]:
        return {
            "contenders": {
                server.name: {
                    **server.spec.model_dump(),
                    "start_seconds": Spread.of(server.start_seconds).values(),
                }
                for server in self.servers
            },
            "loads": [
                {
                    "streams": load.streams,
                    "prompts": load.num_prompts,
                    **report.values(),
                    "speed_ratio_to_peers": {
                        server.name: {
                            peer: values_of(_speed_ratio(report, server.name, peer))
                            for peer in self._peers
                        }
                        for server in self.servers
                    },
                    "speed_by_category": {
                        server.name: {
                            kind: speed.values()
                            for kind, speed in self._speeds(server, load).items()
                        }
                        for server in self.servers
                    },
                    "added_percent": self._added_values(load),
                }
                for load, report in self.reports.items()
            ],
        }

    def notes(self) -> list[str]:
        """Return the caveats of the tables."""
        found = [note for report in self.reports.values() for note in report.notes()]
        found += [note for load, report in self.reports.items() for note in _uneven(load, report)]
        return list(dict.fromkeys(found))

    @property
    def _peers(self) -> list[str]:
        return [server.name for server in self.servers if server.spec.peer]

    def _rows(self, load: StreamLoad, report: ServedReport) -> list[Row]:
        ratios = [f"ratio to {peer}" for peer in self._peers]
        rows: list[Row] = [
            (load.describe(), "output tok/s", *ratios, "median TTFT, ms", "median TPOT, ms")
        ]
        for name in (server.name for server in self.servers):
            speed, ttft, tpot = (
                number(report.spread(name, metric))
                for metric in (_SPEED, "ttft_ms_p50", "tpot_ms_p50")
            )
            to_peers = (number(_speed_ratio(report, name, peer)) for peer in self._peers)
            rows.append((name, speed, *to_peers, ttft, tpot))
        return rows

    def _category_rows(self, load: StreamLoad) -> list[Row]:
        names = [server.name for server in self.servers]
        each = [self._speeds(server, load) for server in self.servers]
        rows: list[Row] = [("tok/s of a request, by kind of prompt", *names)]
        for category in self._categories(load):
            rows.append((category, *(number(speeds.get(category)) for speeds in each)))
        return rows

    def _categories(self, load: StreamLoad) -> list[str]:
        return list(dict.fromkeys(prompt.category for prompt in self.plan.prompts_of(load)))

    def _speeds(self, server: IsolatedServer, load: StreamLoad) -> dict[str, Spread]:
        """Return tokens/s of single requests by category, if every trial has them."""
        kinds = [prompt.category for prompt in self.plan.prompts_of(load)]
        each = [_speed_of_kinds(trial, kinds) for trial in server.served[load]]
        known = [kind for kind in self._categories(load) if all(kind in speeds for speeds in each)]
        return {kind: Spread.of([speeds[kind] for speeds in each]) for kind in known}

    def _added(self, load: StreamLoad) -> Iterable[tuple[IsolatedServer, AddedTime]]:
        for server in self.servers:
            added = AddedTime.of(server, load)
            if added is not None:
                yield server, added

    def _added_lines(self) -> list[str]:
        rows: list[Row] = [
            (
                f"{server.name}, {load.describe()}",
                number(added.to_engine, unit=" %"),
                number(added.to_passes, unit=" %"),
            )
            for load in self.plan.loads
            for server, added in self._added(load)
        ]
        header = ("serving adds", "to the engine's time", "to the models' time")
        return [*columns([header, *rows]), ""] if rows else []

    def _added_values(self, load: StreamLoad) -> dict[str, object]:
        return {
            server.name: {
                "http_to_engine": added.to_engine.values(),
                "http_and_scheduling_to_passes": added.to_passes.values(),
                "engine_tokens_per_s": Spread.of(
                    [1 / trial.seconds_per_token for trial in server.engine[load]]
                ).values(),
            }
            for server, added in self._added(load)
        }


def _speed_ratio(report: ServedReport, name: str, peer: str) -> Spread | None:
    """Return name / peer in tokens/s."""
    return report.ratio(name, _SPEED, peer) if name != peer else None


def _speed_of_kinds(trial: ServedTrial, kinds: Sequence[str]) -> dict[str, float]:
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for record in trial.answered:
        kind, count = kinds[record.prompt], record.usage.num_output_tokens
        if count is not None:
            tokens[kind] = tokens.get(kind, 0) + count
            seconds[kind] = seconds.get(kind, 0.0) + record.e2e
    return {kind: tokens[kind] / seconds[kind] for kind in tokens}


def _percent_above(values: Sequence[float], base: Sequence[float]) -> Spread:
    found = ratio(values, base)
    assert found is not None, base
    median, low, high = (100 * (x - 1) for x in (found.median, found.low, found.high))
    return Spread(median, low, high, found.count)


def _uneven(load: StreamLoad, report: ServedReport) -> Iterable[str]:
    """Yield a note if the servers generated different numbers of tokens."""
    counts = {
        name: set(metrics.get("total_generated_tokens", ()))
        for name, metrics in report.by_trial.items()
    }
    if len(set().union(*counts.values())) > 1:
        each = "; ".join(
            f"{name} {', '.join(f'{count:g}' for count in sorted(found))}"
            for name, found in counts.items()
        )
        yield f"{load.describe()}: not all generated the same number of tokens: {each}"
