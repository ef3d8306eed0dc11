"""Measures the cost of grammar-constrained decoding on one engine."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dspark.bench.compare.agreement import Agreement, agreement_of
from dspark.bench.compare.arms import run_interleaved
from dspark.bench.compare.throughput import headline
from dspark.bench.report.columns import Row, columns, number
from dspark.bench.report.statistics import Spread, ratio, values_of
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.summary import ArmSummary, sum_up
from dspark.bench.workloads.table import arm_tables
from dspark.bench.workloads.trial import Trial, Workload, run_trial
from engine.api import EngineInfo, TokenMask
from engine.build import Built
from engine.core.engine_core import EngineCore

MakeMask = Callable[[], TokenMask]
MasksFor = Callable[[EngineInfo], "Masks"]

FREE, ANY_TEXT, GRAMMAR = "free", "any text", "grammar"
NUM_ARMS = 3


@dataclass(frozen=True, slots=True)
class Masks:
    """Factories of one mask per request."""

    any_text: MakeMask  # allows every token: the cost of masking alone
    grammar: MakeMask


@dataclass(frozen=True, slots=True)
class GrammarComparison:
    """Free text, the same text under a mask that allows everything, and text under a grammar.

    The second arm generates the first's text and adds only the cost of masking. The third
    generates other text with another accept length.
    """

    free: ArmSummary
    any_text: ArmSummary
    grammar: ArmSummary
    agreement: Agreement  # of the first two

    @property
    def holds(self) -> bool:
        return self.agreement.holds

    def ratio_of(self, arm: ArmSummary) -> Spread | None:
        """Return the decode-only speed relative to free text."""
        figure = "decode_tokens_per_s"
        return ratio(arm.by_trial[figure], self.free.by_trial[figure])

    def lines(self) -> list[str]:
        arms = [self.free, self.any_text, self.grammar]
        rows: list[Row] = [("arm", "speed / free, decode only")]
        rows += [(arm.name, number(self.ratio_of(arm))) for arm in arms[1:]]
        return [*arm_tables(arms), *columns(rows), "", *self.agreement.lines()]

    def values(self) -> Mapping[str, object]:
        return {
            **headline(self.grammar),
            "decode_tokens_per_s_free": self.free.spread("decode_tokens_per_s").median,
            "any_text_to_free": values_of(self.ratio_of(self.any_text)),
            "grammar_to_free": values_of(self.ratio_of(self.grammar)),
            **self.agreement.values(),
            "arms": {arm.name: arm.values() for arm in (self.free, self.any_text, self.grammar)},
        }


@dataclass(frozen=True, slots=True)
class _MaskedArm:
    """An arm; make is None for free text."""

    name: str
    engine: EngineCore
    make: MakeMask | None = None

    def run(self, workload: Workload) -> Trial:
        self.engine.flush_cache()
        return run_trial(self.engine, dataclasses.replace(workload, make_mask=self.make))


def compare_grammars(
    built: Built, workload: Workload, masks: Masks, *, trials: int, report: Report
) -> GrammarComparison:
    """Run all three arms. Raises RequestRejected for a request that cannot be served."""
    assert workload.params.temperature == 0, "only greedy arms can be compared"
    makers = {FREE: None, ANY_TEXT: masks.any_text, GRAMMAR: masks.grammar}
    arms = [_MaskedArm(name, built.engine, make) for name, make in makers.items()]
    done = run_interleaved(arms, workload, trials=trials, report=report)
    return GrammarComparison(
        free=sum_up(FREE, done[FREE]),
        any_text=sum_up(ANY_TEXT, done[ANY_TEXT]),
        grammar=sum_up(GRAMMAR, done[GRAMMAR]),
        agreement=agreement_of({name: done[name] for name in (FREE, ANY_TEXT)}, built.target),
    )
