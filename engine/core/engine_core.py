"""Runs the step (plan, draft, cut, run, verify, commit, context, release) and its controls."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from draft import DraftBlock, Proposer
from engine.api import (
    ContextKVMode,
    ContextKVStatus,
    EngineInfo,
    EngineSnapshot,
    Finish,
    Request,
    TokenEvent,
)
from engine.draft_length.confidence_cutoff import VerifyAll, VerifyBudget
from engine.draft_length.cost_tracking import StepTimes
from engine.errors import RequestRejected
from engine.observability.profiler import StepProfiler
from engine.observability.step_metrics import StepMetrics
from engine.observability.step_observer import StepObserver
from engine.runner.batch import ScheduleBatch, build_batch, build_block_request, committed_rows
from engine.runner.target_model import Target, TargetOutput
from engine.runner.transfer import upload
from engine.sampling.draft_token_masks import DraftTokenMasks
from engine.sampling.uniforms import UniformPlan, plan_uniforms
from engine.sampling.verify_step import StepOptions, verify_step
from engine.scheduler.plan import StepPlan
from engine.scheduler.scheduler import Committed, Scheduler
from kv_pool import PageManager


class EngineCore:
    """Runs one target with one draft over one scheduler; not thread-safe, owned by one thread.

    Between steps every running sequence has valid keys and values, of the target and of the
    draft's context, for all but its last committed token.
    """

    def __init__(
        self,
        *,
        target: Target,
        proposer: Proposer,
        scheduler: Scheduler,
        pages: PageManager,
        metrics: StepMetrics,
        info: EngineInfo,
        context_kv_mode: ContextKVMode,
        device: torch.device,
        budget: VerifyBudget | None = None,
        recorder: StepObserver | None = None,
        record_times: Callable[[StepTimes], None] | None = None,
    ) -> None:
        """budget: None verifies every draft token. record_times gets the seconds of each step."""
        self._target = target
        self._proposer = proposer
        self._scheduler = scheduler
        self._pages = pages
        self._metrics = metrics
        self._mode: ContextKVMode = context_kv_mode
        self._device = device
        self._budget = budget or VerifyAll()
        self._recorder = recorder
        self._record_times = record_times
        self._profiler = StepProfiler()
        self.info = info

    # -- requests -----------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRejected or EngineBusy."""
        self._scheduler.add(request)

    def abort(self, request_id: str) -> Finish | None:
        """End a request between steps; None for an unknown id."""
        finish = self._scheduler.abort(request_id)
        if finish is not None:
            self._metrics.finished[finish.reason.value] += 1
        return finish

    def is_queued(self, request_id: str) -> bool:
        """Whether a request waits and has never run."""
        return self._scheduler.is_queued(request_id)

    def request_ids(self) -> list[str]:
        return self._scheduler.request_ids()

    # -- the step -----------------------------------------------------------------------------

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> list[TokenEvent]:
        """Run the target once over the next plan; what became final, in events.

        meanwhile is the host's other work. It is done when a device that computes by itself has
        all of the step before it, and not at all when there is nothing to compute.
        """
        with self._metrics.stage("plan"):
            plan = self._scheduler.plan()
            if not plan:
                return []
            draws = self._plan_draws(plan)
        with self._metrics.stage("draft"):
            block = self._draft(plan, draws)
            plan = self._budget.cut(plan, block)
        with self._metrics.stage("verify"):
            batch = build_batch(plan, block, device=self._device)
            output = self._target.forward(batch)
            options = StepOptions.of(plan, vocab_size=self._target.vocab_size, device=self._device)
            results = verify_step(plan, batch, block, output.logits, draws, options, meanwhile)
        with self._metrics.stage("commit"):
            committed = self._scheduler.commit(plan, results)
            if self._recorder is not None:
                self._recorder.record(plan, block, output, committed)
        with self._metrics.stage("context"):
            self._write_context(batch, output, committed)
        self._scheduler.release(plan)
        self._metrics.record(committed)
        self._metrics.record_rows(
            processed=options.num_processed_rows, told=options.num_logprob_rows
        )
        self._tell_times(plan)
        return [c.event for c in committed if c.event is not None]

    def _plan_draws(self, plan: StepPlan) -> UniformPlan | None:
        return plan_uniforms(plan, block_size=self._proposer.block_size, device=self._device)

    def _draft(self, plan: StepPlan, draws: UniformPlan | None) -> DraftBlock | None:
        if not plan.drafting:
            return None
        return self._proposer.propose(
            build_block_request(
                plan.drafting,
                draws.block if draws is not None else None,
                mask=DraftTokenMasks.of(
                    plan.drafting, vocab_size=self._target.vocab_size, device=self._device
                ),
                num_slots=self._proposer.num_slots,
                device=self._device,
            )
        )

    def _tell_times(self, plan: StepPlan) -> None:
        if self._record_times is None:
            return
        spent = self._metrics.latest_seconds
        times = StepTimes.of(
            plan,
            draft_seconds=spent["draft"],
            pass_seconds=spent["verify"] + spent["commit"] + spent["context"],
        )
        if times is not None:
            self._record_times(times)

    def _write_context(
        self, batch: ScheduleBatch, output: TargetOutput, committed: Sequence[Committed]
    ) -> None:
        """Context keys and values for exactly the rows that stand."""
        if self._proposer.block_size == 0:
            return
        (rows,) = upload(
            [committed_rows([(c.scheduled, c.num_rows) for c in committed])], self._device
        )
        self._proposer.write_context(
            output.aux_hidden[rows], batch.positions[rows], batch.slot_mapping[rows]
        )

    # -- controls between steps ---------------------------------------------------------------

    def record_idle(self, seconds: float) -> None:
        """So long there was nothing to do."""
        self._metrics.idle_seconds += seconds

    def start_profile(self, folder: str) -> None:
        """Raises RequestRejected while a recording runs."""
        self._profiler.start(Path(folder))

    def stop_profile(self) -> str:
        """Raises RequestRejected when none runs."""
        return str(self._profiler.stop())

    def flush_cache(self) -> int:
        return self._pages.flush()

    def set_context_kv(self, mode: ContextKVMode) -> ContextKVStatus:
        """Raises RequestRejected when the stacked form is demanded and cannot hold."""
        try:
            self._proposer.set_context_kv(mode)
        except ValueError as error:
            raise RequestRejected(f"mode 'on' cannot be had: {error}", param="mode") from error
        self._mode = mode
        return self.context_kv_status()

    def context_kv_status(self) -> ContextKVStatus:
        return ContextKVStatus(
            mode=self._mode,
            path=self._proposer.context_kv_path,
            reason=self._proposer.context_kv_reason,
            stacked_bytes=self._proposer.stacked_bytes,
        )

    def snapshot(self) -> EngineSnapshot:
        metrics, counters = self._metrics, self._scheduler.counters
        return EngineSnapshot(
            num_steps=metrics.num_steps,
            num_rounds=metrics.num_rounds,
            num_draft_tokens=metrics.num_draft_tokens,
            num_accepted_tokens=metrics.num_accepted_tokens,
            accepted_per_position=tuple(metrics.accepted_per_position),
            num_withheld_draft_tokens=counters.num_withheld_drafts,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_cached_tokens=counters.num_cached_tokens,
            num_output_tokens=counters.num_output_tokens,
            num_processed_rows=metrics.num_processed_rows,
            num_logprob_rows=metrics.num_logprob_rows,
            num_preemptions=counters.num_preemptions,
            finished=dict(metrics.finished),
            stage_seconds=dict(metrics.stage_seconds),
            idle_seconds=metrics.idle_seconds,
            is_suspended=self._scheduler.is_suspended,
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_pages=self._pages.num_pages,
            num_used_pages=self._pages.num_used,
            num_cached_pages=self._pages.num_cached,
        )
