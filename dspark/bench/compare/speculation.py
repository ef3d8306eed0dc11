"""Compares plain decoding with speculation: two engines over the same target."""

from collections.abc import Mapping
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
    """Both arms, and whether they generated the same texts."""

    plain: ArmSummary
    speculation: ArmSummary
    agreement: Agreement

    @property
    def holds(self) -> bool:
        return self.agreement.holds

    def ratio_of(self, figure: str) -> Spread | None:
        """Return speculation / plain."""
        return ratio(self.speculation.by_trial[figure], self.plain.by_trial[figure])

    def category_ratio(self, category: str) -> Spread | None:
        """Return speculation / plain of the decode-only speed in one category."""
        speculation = self.speculation.categories[category].decode_tokens_per_s
        plain = self.plain.categories[category].decode_tokens_per_s
        return ratio(speculation, plain)

    def lines(self) -> list[str]:
        arms = [self.plain, self.speculation]
        end_to_end = [arm.spread("tokens_per_s") for arm in arms]
        return [
            *arm_tables(arms),
            *self._category_table(),
            "",
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
            "arms": {arm.name: arm.values() for arm in (self.plain, self.speculation)},
        }

    def _category_table(self) -> list[str]:
        rows: list[Row] = [
            ("category", "prompts", "accept length", "speculation / plain, decode only")
        ]
        for name, category in self.speculation.categories.items():
            length, speed = f"{category.accept_length:.2f}", number(self.category_ratio(name))
            rows.append((name, str(category.num_prompts), length, speed))
        return columns(rows)


def compare_speculation(
    plain: Built, speculative: Built, workload: Workload, *, trials: int, report: Report
) -> SpeculationComparison:
    """Run both arms. Raises RequestRejected for a request that cannot be served."""
    assert plain.target is speculative.target, "the arms must decode the same target"
    assert workload.params.temperature == 0, "only greedy arms can be compared"
    arms = [Arm("plain", plain.engine), Arm("speculation", speculative.engine)]
    done = run_interleaved(arms, workload, trials=trials, report=report)
    return SpeculationComparison(
        plain=sum_up("plain", done["plain"]),
        speculation=sum_up("speculation", done["speculation"]),
        agreement=agreement_of(done, plain.target),
    )
