"""Runs the step (plan, draft, cut, run, verify, commit, context, release) and its controls."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from engine.core.draft_ahead import DraftAhead
from engine.core.out_of_memory import is_out_of_memory
from engine.draft_length.confidence_cutoff import VerifyAll, VerifyBudget
from engine.draft_length.cost_tracking import StepTimes
from engine.errors import RequestRejected
from engine.observability.observers import Observers
from engine.observability.profiler import StepProfiler
from engine.observability.step_metrics import StepMetrics
from engine.observability.step_observer import StepObserver
from engine.runner.batch import ScheduleBatch, build_batch, build_block_request, committed_rows
from engine.runner.target_model import Target, TargetOutput
from engine.runner.transfer import upload
from engine.sampling.draft_token_masks import DraftTokenMasks, cut_excluded
from engine.sampling.uniforms import UniformPlan, plan_uniforms
from engine.sampling.verify_step import StepOptions, verify_step
from engine.scheduler.plan import RoundResult, ScheduledSequence, StepPlan
from engine.scheduler.request_fault import RequestFault
from engine.scheduler.scheduler import Committed, Scheduler
from kv_pool import PageManager

logger = logging.getLogger(__name__)


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
        ahead: DraftAhead | None = None,
        observer: StepObserver | None = None,
        record_times: Callable[[StepTimes], None] | None = None,
    ) -> None:
        """budget: None verifies every draft token. ahead: launches drafts before they are planned.
        record_times gets the seconds of each step.
        """
        self._target = target
        self._proposer = proposer
        self._scheduler = scheduler
        self._pages = pages
        self._metrics = metrics
        self._mode: ContextKVMode = context_kv_mode
        self._device = device
        self._budget = budget or VerifyAll()
        self._ahead = ahead
        self._step_observers = Observers([observer.record] if observer is not None else [])
        self._time_observers = Observers([record_times] if record_times is not None else [])
        self._failed: list[TokenEvent] = []  # ends of requests in the step that is computed
        self._profiler = StepProfiler()
        self.info = info

    @property
    def observer_failure(self) -> Exception | None:
        """The exception for which a step observer was removed."""
        return self._step_observers.failure or self._time_observers.failure

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
        """Run the target once over the next plan; return the events of what became final.

        plan; draft, cut, run, verify; commit; context; release. Nothing changes but the pool's
        uncommitted rows before commit, so a fault until then costs one sequence and no other.

        meanwhile is the host's other work. It runs when the device has the whole step to compute,
        and not at all when there is nothing to compute.
        """
        self._metrics.begin_step()
        with self._metrics.stage("plan"):
            plan = self._scheduler.plan()
        decided = self._decide(plan, meanwhile)
        if decided is None:
            return self._take_failed()
        plan = decided.plan
        with self._metrics.stage("commit"):
            committed = self._scheduler.commit(plan, decided.results)
            self._step_observers.notify(plan, decided.block, decided.output, committed)
        with self._metrics.stage("context"):
            self._write_context(decided, committed)
        self._scheduler.release(plan)
        self._record(decided, committed)
        return [done.event for done in committed if done.event is not None] + self._take_failed()

    def _decide(self, plan: StepPlan, meanwhile: Callable[[], None]) -> "_Decided | None":
        """Draft, cut, run and verify; None when no sequence is left to compute.

        The step is repeated without a sequence whose code raised, and without the youngest when
        memory runs out. Raises what leaves the models or the pool in doubt.
        """
        while plan:
            ran: _Ran | None = None
            try:
                ran = self._run(plan)
                return self._verify(ran, meanwhile)
            except RequestFault as fault:
                faults = [fault]
            except Exception as error:
                if is_out_of_memory(error):
                    plan = self._relieve_memory(plan, error)
                    continue
                if ran is None or isinstance(error, torch.AcceleratorError):
                    raise
                faults = self._find_faults(plan)
                if not faults:
                    raise
            for each in faults:
                self._fail(each.request_id, str(each), each)
                plan = plan.without(each.request_id)
        return None

    def _run(self, plan: StepPlan) -> "_Ran":
        """Draft, cut and run: the target's logits over everything in the plan."""
        with self._metrics.stage("draft"):
            plan = cut_excluded(plan, vocab_size=self._target.vocab_size)
            uniforms = plan_uniforms(
                plan, block_size=self._proposer.block_size, device=self._device
            )
            block = self._draft(plan, uniforms)
            plan = self._budget.cut(plan, block)
        with self._metrics.stage("verify"):
            batch = build_batch(plan, block, device=self._device)
            output = self._target.forward(batch)
        if self._ahead is not None and not output.has_written_context:
            # The next block follows on the device. Rows that will be rejected lie past the
            # sequence's length, where nothing reads them.
            with self._metrics.stage("context"):
                self._proposer.write_context(output.aux_hidden, batch.positions, batch.slot_mapping)
                output.has_written_context = True
        return _Ran(plan, uniforms, block, batch, output)

    def _draft(self, plan: StepPlan, uniforms: UniformPlan | None) -> DraftBlock | None:
        drafting = plan.drafting

        def draft(some: Sequence[ScheduledSequence]) -> DraftBlock:
            sampling = None
            if uniforms is not None:
                sampling = uniforms.of_block(plan, some, device=self._device)
            return self._proposer.propose(
                build_block_request(
                    some,
                    sampling,
                    mask=DraftTokenMasks.of(
                        some, vocab_size=self._target.vocab_size, device=self._device
                    ),
                    num_slots=self._proposer.num_slots,
                    device=self._device,
                )
            )

        if self._ahead is not None:
            return self._ahead.propose(drafting, draft)
        return draft(drafting) if drafting else None

    def _verify(self, ran: "_Ran", meanwhile: Callable[[], None]) -> "_Decided":
        with self._metrics.stage("verify"):
            options = StepOptions.of(
                ran.plan, vocab_size=self._target.vocab_size, device=self._device
            )
            results = verify_step(
                ran.plan,
                ran.batch,
                ran.block,
                ran.output,
                ran.uniforms,
                options,
                meanwhile,
                self._ahead,
            )
        return _Decided(ran.plan, ran.block, ran.batch, ran.output, options, results)

    def _write_context(self, decided: "_Decided", committed: Sequence[Committed]) -> None:
        """Write the draft's context keys and values for exactly the committed rows.

        Where the pass wrote all rows, only a discarded block's scratch is written over.
        """
        if decided.output.has_written_context and not (
            self._ahead is not None and self._ahead.has_discarded
        ):
            return
        counts = [(done.scheduled, done.num_rows) for done in committed]
        if self._proposer.block_size == 0 or not any(count for _, count in counts):
            return
        batch = decided.batch
        try:
            (rows,) = upload([committed_rows(counts)], self._device)
            self._proposer.write_context(
                decided.output.aux_hidden[rows], batch.positions[rows], batch.slot_mapping[rows]
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._restart(decided.plan, error)

    def _record(self, decided: "_Decided", committed: Sequence[Committed]) -> None:
        for done in committed:
            if done.fault is not None:
                _log_fault(done.fault.request_id, done.fault)
        self._metrics.record(committed)
        options, spent = decided.options, self._metrics.step_seconds
        self._metrics.record_rows(
            processed=options.num_processed_rows, with_logprobs=options.num_logprob_rows
        )
        times = StepTimes.of(
            decided.plan,
            draft_seconds=spent["draft"],
            pass_seconds=spent["verify"] + spent["commit"] + spent["context"],
        )
        if times is not None:
            self._time_observers.notify(times)

    # -- faults -------------------------------------------------------------------------------

    def _find_faults(self, plan: StepPlan) -> list[RequestFault]:
        """Compute each sequence of a failed step apart; return the faults of those that fail."""
        found = [self._fault_alone(scheduled) for scheduled in plan.scheduled_seqs]
        return [fault for fault in found if fault is not None]

    def _fault_alone(self, scheduled: ScheduledSequence) -> RequestFault | None:
        ran: _Ran | None = None
        try:
            ran = self._run(StepPlan((scheduled,)))
            self._verify(ran, lambda: None)
        except RequestFault as own:
            return own
        except Exception as error:
            if ran is None:
                raise
            fault = RequestFault(scheduled.seq.request.request_id)
            fault.__cause__ = error
            return fault
        return None

    def _relieve_memory(self, plan: StepPlan, error: Exception) -> StepPlan:
        """Return the plan without its youngest sequence, which waits; alone, it fails."""
        if len(plan.scheduled_seqs) > 1:
            logger.warning("out of memory: the step is repeated without its youngest: %s", error)
            return self._scheduler.drop_last(plan)
        self._fail_for_memory(plan, error)
        return StepPlan(())

    def _restart(self, plan: StepPlan, error: Exception) -> None:
        """Have the committed sequences compute their keys, values and context again."""
        if len(plan.scheduled_seqs) == 1 and self._scheduler.is_running(plan.scheduled_seqs[0].seq):
            self._fail_for_memory(plan, error)
            return
        logger.warning("out of memory: the sequences of the step start again: %s", error)
        self._scheduler.restart(plan)

    def _fail_for_memory(self, plan: StepPlan, error: Exception) -> None:
        (scheduled,) = plan.scheduled_seqs
        request_id = scheduled.seq.request.request_id
        self._fail(
            request_id,
            f"out of memory: {scheduled.num_rows} rows after {scheduled.start} tokens do not fit, "
            f"even with no other request in the step; the server's log has the details of request "
            f"{request_id}",
            error,
        )

    def _fail(self, request_id: str, message: str, error: Exception) -> None:
        _log_fault(request_id, error)
        finish = self._scheduler.fail(request_id, message)
        self._metrics.finished[finish.reason.value] += 1
        self._failed.append(TokenEvent(request_id, (), finish))

    def _take_failed(self) -> list[TokenEvent]:
        failed, self._failed = self._failed, []
        return failed

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
        return self._scheduler.flush_cache()

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
            stacked_bytes=0,
        )

    def snapshot(self) -> EngineSnapshot:
        metrics, counters = self._metrics, self._scheduler.counters
        return EngineSnapshot(
            num_steps=metrics.num_steps,
            num_rounds=metrics.num_rounds,
            num_draft_tokens=metrics.num_draft_tokens,
            num_accepted_tokens=metrics.num_accepted_tokens,
            accepted_per_position=tuple(metrics.accepted_per_position),
            sources=dict(metrics.sources),
            plain_rounds=dict(metrics.plain_rounds),
            num_withheld_draft_tokens=self._scheduler.num_withheld_drafts,
            num_capped_rounds=counters.num_capped_rounds,
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


@dataclass(frozen=True, slots=True)
class _Ran:
    """A plan's drafts and the target's pass over both; valid until the next pass."""

    plan: StepPlan  # after the cut
    uniforms: UniformPlan | None
    block: DraftBlock | None
    batch: ScheduleBatch
    output: TargetOutput


@dataclass(frozen=True, slots=True)
class _Decided:
    """A step that is computed and not committed."""

    plan: StepPlan
    block: DraftBlock | None
    batch: ScheduleBatch
    output: TargetOutput
    options: StepOptions
    results: Sequence[RoundResult]


def _log_fault(request_id: str, error: Exception) -> None:
    logger.error("request %s failed; other requests go on", request_id, exc_info=error)
