"""The engine as its thread sees it: the step loop and the handful of calls between steps."""

from collections.abc import Callable
from pathlib import Path

from draft import Proposer
from engine.api import (
    ContextKVMode,
    ContextKVStatus,
    EngineInfo,
    EngineSnapshot,
    Finish,
    Request,
    TokenEvent,
)
from engine.core.step import EngineCore
from engine.errors import RequestRejected
from engine.observability.profiler import StepProfiler
from engine.observability.step_metrics import StepMetrics
from engine.scheduler.scheduler import Scheduler
from kv_pool import PageManager


class Engine:
    """Everything that `build_engine` wired; not thread-safe."""

    def __init__(
        self,
        *,
        core: EngineCore,
        scheduler: Scheduler,
        proposer: Proposer,
        pages: PageManager,
        metrics: StepMetrics,
        info: EngineInfo,
        context_kv_mode: ContextKVMode,
    ) -> None:
        self._core = core
        self._scheduler = scheduler
        self._proposer = proposer
        self._pages = pages
        self._metrics = metrics
        self._mode: ContextKVMode = context_kv_mode
        self._profiler = StepProfiler()
        self.info = info

    @property
    def is_idle(self) -> bool:
        return self._core.is_idle

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRejected or EngineBusy."""
        self._core.add(request)

    def abort(self, request_id: str) -> Finish | None:
        """End a request between steps; None if it is not known."""
        finish = self._core.abort(request_id)
        if finish is not None:
            self._metrics.finished[finish.reason.value] += 1
        return finish

    def is_queued(self, request_id: str) -> bool:
        return self._scheduler.is_queued(request_id)

    def request_ids(self) -> list[str]:
        return self._scheduler.request_ids()

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> list[TokenEvent]:
        """See EngineCore.step."""
        return self._core.step(meanwhile)

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
