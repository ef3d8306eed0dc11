"""Measures the throughput and latency of one engine as configured."""

from collections.abc import Mapping
from dataclasses import dataclass

from dspark.bench.compare.arms import Arm, run_interleaved
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.summary import ArmSummary, sum_up
from dspark.bench.workloads.table import arm_tables
from dspark.bench.workloads.trial import Workload
from engine.build import Built


@dataclass(frozen=True, slots=True)
class Throughput:
    """A measurement of one arm, without a verdict."""

    arm: ArmSummary
    speculates: bool

    @property
    def holds(self) -> bool:
        return True

    def lines(self) -> list[str]:
        return arm_tables([self.arm])[:-1]

    def values(self) -> Mapping[str, object]:
        alone = None if self.speculates else self.arm.spread("tokens_per_s").median
        return {
            **headline(self.arm),
            "tokens_per_s_target_alone": alone,
            "arms": {self.arm.name: self.arm.values()},
        }


def measure_throughput(
    built: Built, workload: Workload, *, trials: int, report: Report
) -> Throughput:
    """Run the one arm. Raises RequestRejected for a request that cannot be served."""
    speculates = built.draft is not None
    arm = Arm("speculation" if speculates else "plain", built.engine)
    done = run_interleaved([arm], workload, trials=trials, report=report)
    return Throughput(sum_up(arm.name, done[arm.name]), speculates)


def headline(arm: ArmSummary) -> dict[str, object]:
    """Return the main numbers of an arm."""
    return {
        "requests": int(arm.spread("requests").median),
        "tokens_per_s": arm.spread("tokens_per_s").median,
        "decode_tokens_per_s": arm.spread("decode_tokens_per_s").median,
        "accept_length_mean": arm.accept_length,
        "accept_length_counts": list(arm.speculation.accept_counts),
        "ttft_ms_p50": arm.spread("ttft_ms_p50").median,
        "ttft_ms_p99": arm.spread("ttft_ms_p99").median,
    }
