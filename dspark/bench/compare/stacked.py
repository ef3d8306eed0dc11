"""Compares the stacked with the per-layer context write: alone, and end to end."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from dspark.bench.compare.agreement import Agreement, agreement_of
from dspark.bench.compare.arms import Arm, run_interleaved
from dspark.bench.compare.context_write import TOKEN_COUNTS, ContextWrites, measure_context_writes
from dspark.bench.compare.throughput import headline
from dspark.bench.report.columns import Row, columns, number
from dspark.bench.report.statistics import Spread, ratio, values_of
from dspark.bench.report.verdict import faster_by
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.summary import ArmSummary, sum_up
from dspark.bench.workloads.table import arm_tables
from dspark.bench.workloads.trial import Workload
from engine.build import Built

_POOL_TOKENS = 16_384  # of the pool for the writes alone: enough to scatter the slots


@dataclass(frozen=True, slots=True)
class StackedComparison:
    """Context writes, both arms end to end, and whether they generated the same texts."""

    writes: ContextWrites
    stacked: ArmSummary
    per_layer: ArmSummary
    agreement: Agreement

    @property
    def accept_lengths_agree(self) -> bool:
        """Whether the counts of rounds and accepted tokens are equal."""
        return self.stacked.speculation == self.per_layer.speculation

    @property
    def holds(self) -> bool:
        """False if texts differ, or equal texts took different rounds; float32 only."""
        if not self.agreement.is_guaranteed:
            return True
        same_rounds = self.accept_lengths_agree or not self.agreement.is_exact
        return self.agreement.holds and same_rounds

    @property
    def speed_ratio(self) -> Spread | None:
        """Return stacked / per layer in output tokens/s end to end."""
        return ratio(self.stacked.by_trial["tokens_per_s"], self.per_layer.by_trial["tokens_per_s"])

    def lines(self) -> list[str]:
        arms = [self.stacked, self.per_layer]
        speeds = [arm.spread("tokens_per_s") for arm in arms]
        return [
            *self._write_table(),
            f"largest |ΔK| {self.writes.key_difference:.2e}, "
            f"largest |ΔV| {self.writes.value_difference:.2e}",
            f"memory of the stacked form beyond the parameters: {self.writes.extra_bytes} bytes",
            self._path_line(),
            "",
            *arm_tables(arms),
            f"stacked / per layer, output tokens/s end to end: {number(self.speed_ratio)}",
            faster_by("stacked", speeds[0], "per layer", speeds[1]),
            self._accept_line(),
            *self.agreement.lines(),
        ]

    def values(self) -> Mapping[str, object]:
        return {
            **headline(self.stacked),
            "tokens_per_s_target_alone": None,  # not an arm of this comparison
            "tokens_per_s_per_layer": self.per_layer.spread("tokens_per_s").median,
            "speedup": values_of(self.speed_ratio),
            "is_measurable": self.stacked.spread("tokens_per_s").differs_from(
                self.per_layer.spread("tokens_per_s")
            ),
            **self.writes.values(),
            "accept_lengths_agree": self.accept_lengths_agree,
            **self.agreement.values(),
            "arms": {arm.name: arm.values() for arm in (self.stacked, self.per_layer)},
        }

    def _write_table(self) -> list[str]:
        rows: list[Row] = [
            ("context write of tokens", "stacked", "per layer", "per layer / stacked")
        ]
        for time in self.writes.times:
            rows.append(
                (
                    str(time.num_tokens),
                    number(time.stacked_us, unit=" µs"),
                    number(time.per_layer_us, unit=" µs"),
                    f"{time.per_layer_us.median / time.stacked_us.median:.2f}",
                )
            )
        return columns(rows)

    def _path_line(self) -> str:
        if self.writes.path == "stacked":
            return "fallback: none; this draft supports the stacked form"
        return (
            f"fallback: layer by layer, because {self.writes.reason}; "
            "both columns and both arms are the per-layer path"
        )

    def _accept_line(self) -> str:
        a, b = self.stacked.accept_length, self.per_layer.accept_length
        if self.accept_lengths_agree:
            return f"accept length: {a:.4f} in both arms, with equal counts"
        return f"accept length: DIFFERENT: stacked {a:.4f}, per layer {b:.4f}"


def compare_stacked(
    built: Built,
    workload: Workload,
    *,
    trials: int,
    repetitions: int,
    device: torch.device,
    report: Report,
) -> StackedComparison:
    """Time the writes alone, then run both modes interleaved on one engine.

    Restores the engine's mode. Raises RequestRejected for a request that cannot be served.
    """
    assert built.draft is not None, "without a draft there is no context to write"
    assert workload.params.temperature == 0, "only greedy arms can be compared"
    engine = built.engine
    before = engine.context_kv_status().mode
    report("context writes")
    writes = measure_context_writes(
        built.draft.network,
        max_positions=built.target.max_len,
        page_size=built.memory.page_size,
        num_pages=_pool_pages(built.memory.num_pages, built.memory.page_size),
        device=device,
        repetitions=repetitions,
        linear=built.linear,
        kernel=built.context_kernel,
    )
    arms = [
        Arm("stacked", engine, partial(engine.set_context_kv, "auto")),
        Arm("per_layer", engine, partial(engine.set_context_kv, "off")),
    ]
    done = run_interleaved(arms, workload, trials=trials, report=report)
    engine.set_context_kv(before)
    return StackedComparison(
        writes=writes,
        stacked=sum_up("stacked", done["stacked"]),
        per_layer=sum_up("per_layer", done["per_layer"]),
        agreement=agreement_of(done, built.target),
    )


def _pool_pages(engine_pages: int, page_size: int) -> int:
    """Return the engine's pages, bounded by the largest write and by _POOL_TOKENS."""
    fewest = -(-max(TOKEN_COUNTS) // page_size)
    most = -(-_POOL_TOKENS // page_size)
    return max(fewest, min(engine_pages, most))
