"""How servers stand that had the machine to themselves: tables, values, what to know."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dspark.bench.http.figures import ServedTrial, served_figures
from dspark.bench.http.isolated_servers import Course, RequestLoad, Stand
from dspark.bench.http.report import ServedReport
from dspark.bench.http.turns import Turns
from dspark.bench.report.columns import Row, columns, number
from dspark.bench.report.statistics import Spread, ratio, values_of

_SPEED = "output_throughput"


@dataclass(frozen=True, slots=True)
class Added:
    """What serving adds to the engine's own time of one load, in percent, trial by trial."""

    to_engine: Spread  # HTTP, to the same engine driven in one process
    to_passes: Spread  # HTTP and scheduling, to the models' work in that process

    @classmethod
    def of(cls, stand: Stand, load: RequestLoad) -> "Added | None":
        """None where the server or the engine was not measured, or tells no tokens."""
        served = [served_figures(trial).get(_SPEED) for trial in stand.served[load]]
        engine = stand.engine.get(load)
        speeds = [speed for speed in served if speed]
        if engine is None or len(speeds) < len(served):
            return None
        each = [1 / speed for speed in speeds]
        return cls(
            _percent_above(each, [trial.seconds_per_token for trial in engine]),
            _percent_above(each, [trial.pass_seconds_per_token for trial in engine]),
        )


@dataclass(frozen=True, eq=False)
class Standings:
    """What came of it; `holds` is false when a server answered nothing at all under some load."""

    stands: Sequence[Stand]
    course: Course

    @property
    def holds(self) -> bool:
        return all(report.holds for report in self.reports.values())

    @cached_property
    def reports(self) -> Mapping[RequestLoad, ServedReport]:
        servers = {stand.name: stand.server_values for stand in self.stands}
        return {
            load: ServedReport(Turns({s.name: s.served[load] for s in self.stands}, servers))
            for load in self.course.loads
        }

    def lines(self) -> list[str]:
        lines: list[str] = []
        for load, report in self.reports.items():
            lines += [*columns(self._rows(load, report)), ""]
            if load.streams == 1:
                lines += [*columns(self._category_rows(load)), ""]
            for said in (report.same_lines(), report.failure_lines()):
                lines += [line for line in said if line]
            lines.append("")
        starts = (f"{s.name} {number(Spread.of(s.start_seconds))}" for s in self.stands)
        return [*lines, *self._added_lines(), f"seconds to start: {'; '.join(starts)}"]

    def values(self) -> dict[str, object]:
        return {
            "contenders": {
                stand.name: {
                    **stand.contender.model_dump(),
                    "start_seconds": Spread.of(stand.start_seconds).values(),
                }
                for stand in self.stands
            },
            "loads": [
                {
                    "streams": load.streams,
                    "prompts": load.num_prompts,
                    **report.values(),
                    "speed_ratio_to_peers": self._ratio_values(report),
                    "speed_by_category": self._category_values(load),
                    "added_percent": self._added_values(load),
                }
                for load, report in self.reports.items()
            ],
        }

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        found = [note for report in self.reports.values() for note in report.notes()]
        found += [note for load, report in self.reports.items() for note in _uneven(load, report)]
        return list(dict.fromkeys(found))

    @property
    def _peers(self) -> list[str]:
        return [stand.name for stand in self.stands if stand.contender.peer]

    def _rows(self, load: RequestLoad, report: ServedReport) -> list[Row]:
        against = [f"ratio to {peer}" for peer in self._peers]
        header = (_describe(load), "output tok/s", *against, "median TTFT, ms", "median TPOT, ms")
        return [
            header,
            *(
                (
                    stand.name,
                    number(report.spread(stand.name, _SPEED)),
                    *(number(_speed_ratio(report, stand.name, peer)) for peer in self._peers),
                    number(report.spread(stand.name, "ttft_ms_p50")),
                    number(report.spread(stand.name, "tpot_ms_p50")),
                )
                for stand in self.stands
            ),
        ]

    def _category_rows(self, load: RequestLoad) -> list[Row]:
        names = [stand.name for stand in self.stands]
        each = [self._speeds(stand, load) for stand in self.stands]
        return [
            ("tok/s of a request, by kind of prompt", *names),
            *(
                (category, *(number(speeds.get(category)) for speeds in each))
                for category in self._categories(load)
            ),
        ]

    def _categories(self, load: RequestLoad) -> list[str]:
        return list(dict.fromkeys(prompt.category for prompt in self.course.prompts_of(load)))

    def _speeds(self, stand: Stand, load: RequestLoad) -> dict[str, Spread]:
        """Tokens a second of single requests, by category; without those that are not known."""
        kinds = [prompt.category for prompt in self.course.prompts_of(load)]
        each = [_speed_of_kinds(trial, kinds) for trial in stand.served[load]]
        known = [kind for kind in self._categories(load) if all(kind in speeds for speeds in each)]
        return {kind: Spread.of([speeds[kind] for speeds in each]) for kind in known}

    def _category_values(self, load: RequestLoad) -> dict[str, object]:
        return {
            stand.name: {kind: s.values() for kind, s in self._speeds(stand, load).items()}
            for stand in self.stands
        }

    def _ratio_values(self, report: ServedReport) -> dict[str, object]:
        return {
            stand.name: {
                peer: values_of(_speed_ratio(report, stand.name, peer)) for peer in self._peers
            }
            for stand in self.stands
        }

    def _added(self, load: RequestLoad) -> Iterable[tuple[Stand, Added]]:
        for stand in self.stands:
            added = Added.of(stand, load)
            if added is not None:
                yield stand, added

    def _added_lines(self) -> list[str]:
        rows: list[Row] = [
            (
                f"{stand.name}, {_describe(load)}",
                number(added.to_engine, unit=" %"),
                number(added.to_passes, unit=" %"),
            )
            for load in self.course.loads
            for stand, added in self._added(load)
        ]
        header = ("serving adds", "to the engine's time", "to that of its models alone")
        return [*columns([header, *rows]), ""] if rows else []

    def _added_values(self, load: RequestLoad) -> dict[str, object]:
        return {
            stand.name: {
                "http_to_engine": added.to_engine.values(),
                "http_and_scheduling_to_passes": added.to_passes.values(),
                "engine_tokens_per_s": Spread.of(
                    [1 / trial.seconds_per_token for trial in stand.engine[load]]
                ).values(),
            }
            for stand, added in self._added(load)
        }


def _describe(load: RequestLoad) -> str:
    streams = "1 stream" if load.streams == 1 else f"{load.streams} streams"
    prompts = "1 prompt" if load.num_prompts == 1 else f"{load.num_prompts} prompts"
    return f"{streams}, {prompts}"


def _speed_ratio(report: ServedReport, name: str, peer: str) -> Spread | None:
    """name / peer, in tokens a second."""
    ours, theirs = (report.by_trial[server].get(_SPEED) for server in (name, peer))
    return ratio(ours, theirs) if ours and theirs and name != peer else None


def _speed_of_kinds(trial: ServedTrial, kinds: Sequence[str]) -> dict[str, float]:
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for call in trial.answered:
        kind, count = kinds[call.prompt], call.usage.num_output_tokens
        if count is not None:
            tokens[kind] = tokens.get(kind, 0) + count
            seconds[kind] = seconds.get(kind, 0.0) + call.e2e
    return {kind: tokens[kind] / seconds[kind] for kind in tokens}


def _percent_above(values: Sequence[float], base: Sequence[float]) -> Spread:
    found = ratio(values, base)
    assert found is not None, base
    middle, low, high = (100 * (x - 1) for x in (found.median, found.low, found.high))
    return Spread(middle, low, high, found.count)


def _uneven(load: RequestLoad, report: ServedReport) -> Iterable[str]:
    """Servers that were to say the same number of tokens, and did not."""
    figure = "total_generated_tokens"
    counts = {name: set(trials.get(figure, ())) for name, trials in report.by_trial.items()}
    if len(set().union(*counts.values())) > 1:
        said = "; ".join(
            f"{name} {', '.join(f'{count:g}' for count in sorted(found))}"
            for name, found in counts.items()
        )
        yield f"{_describe(load)}: not all made the same number of tokens: {said}"
