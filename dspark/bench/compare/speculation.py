"""Compares plain decoding with speculation: engines over the same target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.bench.compare.agreement import Agreement, agreement_of
from dspark.bench.compare.arms import Arm, run_interleaved
from dspark.bench.compare.throughput import headline
from dspark.bench.report.columns import Row, columns, number
from dspark.bench.report.statistics import Spread, ratio, values_of
from dspark.bench.report.verdict import faster_by
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.summary import ArmSummary, sum_up
from dspark.bench.workloads.table import arm_tables
from dspark.bench.workloads.trial import Workload
from engine.build import Built


@dataclass(frozen=True, slots=True)
class SpeculationComparison:
    """All arms, and whether they generated the same texts.

    single: arms with one proposer each, where speculation has two.
    """

    plain: ArmSummary
    speculation: ArmSummary
    agreement: Agreement
    single: Sequence[ArmSummary] = ()

    @property
    def arms(self) -> list[ArmSummary]:
        return [self.plain, *self.single, self.speculation]

    @property
    def holds(self) -> bool:
        return self.agreement.holds

    def ratio_of(self, figure: str, arm: ArmSummary | None = None) -> Spread | None:
        """Return an arm / plain; None: speculation."""
        return ratio((arm or self.speculation).by_trial[figure], self.plain.by_trial[figure])

    def category_ratio(self, category: str, arm: ArmSummary | None = None) -> Spread | None:
        """Return an arm / plain of the decode-only speed in one category; None: speculation."""
        found = (arm or self.speculation).categories[category].decode_tokens_per_s
        return ratio(found, self.plain.categories[category].decode_tokens_per_s)

    def lines(self) -> list[str]:
        end_to_end = [arm.spread("tokens_per_s") for arm in (self.plain, self.speculation)]
        return [
            *arm_tables(self.arms),
            *self._category_table(),
            "",
            *(
                f"{arm.name} / plain, output tokens/s decode only: "
                f"{number(self.ratio_of('decode_tokens_per_s', arm))}"
                for arm in self.single
            ),
            "speculation / plain, output tokens/s end to end: "
            f"{number(self.ratio_of('tokens_per_s'))}",
            "speculation / plain, output tokens/s decode only: "
            f"{number(self.ratio_of('decode_tokens_per_s'))}",
            faster_by("speculation", end_to_end[1], "plain decoding", end_to_end[0]),
            *self.agreement.lines(),
        ]

    def values(self) -> Mapping[str, object]:
        return {
            **headline(self.speculation),
            "tokens_per_s_target_alone": self.plain.spread("tokens_per_s").median,
            "decode_tokens_per_s_target_alone": self.plain.spread("decode_tokens_per_s").median,
            "speedup": values_of(self.ratio_of("tokens_per_s")),
            "speedup_decode_only": values_of(self.ratio_of("decode_tokens_per_s")),
            "is_measurable": self.speculation.spread("tokens_per_s").differs_from(
                self.plain.spread("tokens_per_s")
            ),
            "categories": {
                name: {
                    "accept_length": category.accept_length,
                    "speedup_decode_only": values_of(self.category_ratio(name)),
                }
                for name, category in self.speculation.categories.items()
            },
            **self.agreement.values(),
            "speedup_decode_only_of_single_proposers": {
                arm.name: values_of(self.ratio_of("decode_tokens_per_s", arm))
                for arm in self.single
            },
            "arms": {arm.name: arm.values() for arm in self.arms},
        }

    def _category_table(self) -> list[str]:
        arms = [*self.single, self.speculation]
        rows: list[Row] = [
            (
                "category",
                "prompts",
                "accept length",
                *(f"{arm.name} / plain, decode only" for arm in arms),
            )
        ]
        for name, category in self.speculation.categories.items():
            speeds = [number(self.category_ratio(name, arm)) for arm in arms]
            length = f"{category.accept_length:.2f}"
            rows.append((name, str(category.num_prompts), length, *speeds))
        return columns(rows)


def compare_speculation(
    plain: Built,
    speculative: Built,
    workload: Workload,
    *,
    trials: int,
    report: Report,
    single: Mapping[str, Built] | None = None,
) -> SpeculationComparison:
    """Run all arms. Raises RequestRejected for a request that cannot be served.

    single: further engines by the name of their only proposer.
    """
    single = single or {}
    built = {"plain": plain, **single, "speculation": speculative}
    assert all(b.target is plain.target for b in built.values()), (
        "the arms must decode the same target"
    )
    assert workload.params.temperature == 0, "only greedy arms can be compared"
    arms = [Arm(name, each.engine) for name, each in built.items()]
    done = run_interleaved(arms, workload, trials=trials, report=report)
    return SpeculationComparison(
        plain=sum_up("plain", done["plain"]),
        speculation=sum_up("speculation", done["speculation"]),
        agreement=agreement_of(done, plain.target),
        single=[sum_up(name, done[name]) for name in single],
    )
