"""Compares the engine with transformers' generate: same weights, threads and prompts."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from dspark.bench.compare.agreement import Agreement, agreement_of
from dspark.bench.compare.arms import Arm, TrialRunner, run_interleaved
from dspark.bench.compare.greedy_identity import refuse_other_decoding
from dspark.bench.compare.identity import generate_reference
from dspark.bench.compare.throughput import headline
from dspark.bench.report.columns import number
from dspark.bench.report.statistics import Spread, ratio, values_of
from dspark.bench.report.verdict import faster_by
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.summary import ArmSummary, sum_up
from dspark.bench.workloads.table import arm_table, stage_table
from dspark.bench.workloads.trial import EngineCounts, Trial, Workload
from engine.api import Finish, FinishReason, Request, SpeculationStats
from engine.build import Built
from engine.core.offline import RequestRun
from engine.loading.target import LoadedTarget

NAME = "transformers"


@dataclass(frozen=True, slots=True)
class TransformersComparison:
    """All arms, transformers first, and whether they generated the same texts."""

    arms: tuple[ArmSummary, ...]
    agreement: Agreement

    @property
    def holds(self) -> bool:
        return self.agreement.holds

    def ratio_of(self, arm: ArmSummary, figure: str) -> Spread | None:
        """Return arm / transformers."""
        return ratio(arm.by_trial[figure], self.arms[0].by_trial[figure])

    def lines(self) -> list[str]:
        reference, *ours = self.arms
        lines = [*arm_table(self.arms), "", *stage_table(ours), ""]
        for arm in ours:
            for figure, label in _RATIOS.items():
                spread = number(self.ratio_of(arm, figure))
                lines.append(f"{arm.name} / {NAME}, output tokens/s {label}: {spread}")
            speeds = [a.spread("tokens_per_s") for a in (arm, reference)]
            lines.append(faster_by(arm.name, speeds[0], NAME, speeds[1]))
        return [*lines, *self.agreement.lines()]

    def values(self) -> Mapping[str, object]:
        reference, *ours = self.arms
        return {
            **headline(ours[-1]),
            "tokens_per_s_transformers": reference.spread("tokens_per_s").median,
            "speedup": {
                arm.name: {f: values_of(self.ratio_of(arm, f)) for f in _RATIOS} for arm in ours
            },
            **self.agreement.values(),
            "arms": {arm.name: arm.values() for arm in self.arms},
        }


_RATIOS = {"tokens_per_s": "end to end", "decode_tokens_per_s": "decode only"}


@dataclass(frozen=True, slots=True)
class TransformersArm:
    """Runs generate(do_sample=False) prompt by prompt, with SDPA and its own KV cache."""

    target: LoadedTarget
    name: str = NAME

    def run(self, workload: Workload, *, clock: Callable[[], float] = time.perf_counter) -> Trial:
        started = clock()
        runs = tuple(self._one(request, workload, clock) for request in workload.requests())
        seconds = clock() - started
        num_passes = sum(len(run.token_ids) for run in runs)
        return Trial(
            runs=runs,
            categories=tuple(prompt.category for prompt in workload.prompts),
            seconds=seconds,
            counts=EngineCounts(num_steps=num_passes),
        )

    def _one(self, request: Request, workload: Workload, clock: Callable[[], float]) -> RequestRun:
        run = RequestRun(request, clock())
        streamer = _TimingStreamer(run, clock)
        ids = generate_reference(
            self.target,
            request.prompt_ids,
            max_new_tokens=workload.params.max_new_tokens,
            streamer=streamer,
        )
        run.token_ids = list(ids)
        run.finish = Finish(
            reason=FinishReason.STOP if ids[-1] in self.target.eos_ids else FinishReason.LENGTH,
            matched=None,
            num_prompt_tokens=len(request.prompt_ids),
            num_output_tokens=len(ids),
            num_cached_tokens=0,
            speculation=SpeculationStats(),
            queue_seconds=0.0,
            prefill_seconds=run.ttft,
            decode_seconds=run.ended_at - run.event_times[0],
        )
        return run


class _TimingStreamer:
    """Records the time of every token; generate first puts the prompt."""

    def __init__(self, run: RequestRun, clock: Callable[[], float]) -> None:
        self._run = run
        self._clock = clock
        self._has_prompt = False

    def put(self, value: Tensor) -> None:
        if self._has_prompt:
            self._run.event_times.append(self._clock())
            self._run.event_sizes.append(value.numel())
        self._has_prompt = True

    def end(self) -> None:
        """Required by generate."""


def compare_transformers(
    plain: Built, speculative: Built | None, workload: Workload, *, trials: int, report: Report
) -> TransformersComparison:
    """Run all arms with one stream.

    Raises RequestRejected for a request that cannot be served, and LoadError if the target's
    generation config changes greedy decoding.
    """
    assert workload.params.temperature == 0, "only greedy arms can be compared"
    assert workload.concurrency == 1, "generate runs one prompt at a time"
    target = plain.target
    refuse_other_decoding(getattr(target.model, "generation_config", None))
    arms: list[TrialRunner] = [TransformersArm(target), Arm("plain", plain.engine)]
    if speculative is not None:
        assert speculative.target is target, "the arms must decode the same target"
        arms.append(Arm("speculation", speculative.engine))
    done = run_interleaved(arms, workload, trials=trials, report=report)
    return TransformersComparison(
        arms=tuple(sum_up(name, done[name]) for name in done),
        agreement=agreement_of(done, target),
    )
