"""Loads models, sizes the pool and connects the engine. Importing it loads torch."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from draft import ContextKernel, LinearFunction, Proposer, widening_linear
from engine.api import EngineInfo
from engine.config import EngineConfig
from engine.core.draft_ahead import DraftAhead
from engine.core.engine_core import EngineCore
from engine.core.worker import EngineWorker
from engine.cuda_graphs import GraphedProposer
from engine.draft_length.cost_model import StepCosts
from engine.draft_length.cost_profiling import CostRig
from engine.draft_length.cost_tracking import StepTimes
from engine.loading.draft import LoadedDraft, load_draft
from engine.loading.target import LoadedTarget, load_target
from engine.model_setup.device_backend import DeviceBackend
from engine.model_setup.draft_backend import context_kernel, make_budget, make_planner
from engine.model_setup.memory_plan import MemoryPlan
from engine.model_setup.model_passes import ModelPasses, make_model_passes
from engine.model_setup.prepared_models import PreparedModels, prepare_models
from engine.observability.acceptance_monitor import AcceptanceMonitor
from engine.observability.engine_info import describe, log_start
from engine.observability.stats_log import StatsLog
from engine.observability.step_metrics import StepMetrics
from engine.observability.step_observer import StepObserver
from engine.platform.auto_settings import (
    configure_threads,
    resolve_device,
    resolve_dtype,
    resolve_window,
)
from engine.platform.openmp import release_workers
from engine.platform.stage_times import logged_stage
from engine.proposers.planner import PlannerByLoad
from engine.runner.target_model import Target
from engine.scheduler.proposals import ProposalPlanner
from engine.scheduler.request_limits import RequestLimits
from engine.scheduler.request_order import RequestOrder
from engine.scheduler.scheduler import Scheduler
from kv_pool import KVPool, PageManager

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """Holds an engine without a thread, and its parts for benchmarks and tests."""

    engine: EngineCore
    target: LoadedTarget
    draft: LoadedDraft | None
    proposer: Proposer
    memory: MemoryPlan
    linear: LinearFunction  # replaces F.linear
    runner: Target  # runs the engine's target passes
    pool: KVPool
    context_kernel: ContextKernel | None  # writes context KV in the stacked form


def build_engine(config: EngineConfig) -> EngineWorker:
    """Load both models and start the engine's thread.

    Raises LoadError for anything that cannot be served, before a thread exists.
    """
    device = resolve_device(config)
    num_threads = configure_threads(config, device)
    built = load_engine(config, device=device)
    release_workers()  # from now on the engine's thread computes, with its workers alone
    monitor = AcceptanceMonitor()
    return EngineWorker(
        built.engine,
        num_threads=num_threads,
        observers=(StatsLog(), monitor),
        has_collapsed=lambda: monitor.has_collapsed,
        delivers_after_launch=device.type == "cuda",
    )


def load_engine(
    config: EngineConfig, *, device: torch.device, observer: StepObserver | None = None
) -> Built:
    """Load the models that the config names, and connect them; see `wire_engine`."""
    with logged_stage(logger, "loading the weights"):
        target, draft = load_models(config, device)
    return wire_engine(config, target=target, draft=draft, device=device, observer=observer)


def load_models(
    config: EngineConfig, device: torch.device
) -> tuple[LoadedTarget, LoadedDraft | None]:
    """Load the target, and the draft if the config names one. Raises LoadError."""
    logger.info("loading the target from %s", config.target)
    target = load_target(
        config.target,
        revision=config.target_revision,
        dtype=resolve_dtype(config, device),
        device=device,
        trust_remote_code=config.trust_remote_code,
        max_model_len=config.max_model_len,
    )
    draft = load_draft(config, target, device) if config.draft is not None else None
    return target, draft


def wire_engine(
    config: EngineConfig,
    *,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    device: torch.device,
    observer: StepObserver | None = None,
    device_backend: DeviceBackend | None = None,
    costs: StepCosts | None = None,
    tap_layers: tuple[int, ...] | None = None,
) -> Built:
    """Check the target, size the pool and connect the parts.

    tap_layers: captured for the observer; None with a draft, which determines them.
    device_backend: None chooses by config and device.
    costs: of target and draft passes, for the choice of drafts; None measures them.
    Raises LoadError when the target fails its self-check or memory is too small.
    """
    with logged_stage(logger, "preparing kernels and checking the target"):
        models = prepare_models(
            config,
            target=target,
            draft=draft,
            tap_layers=tap_layers,
            device_backend=device_backend,
            device=device,
        )
    with logged_stage(logger, "allocating memory"):
        passes = make_model_passes(config, models)
    with logged_stage(logger, "measuring costs"):
        rig = _cost_rig(config, models, passes, device)
        planner = make_planner(config, draft, rig, costs=costs)
    record_times = _cost_correction(planner, is_measured=costs is None, device=device)
    details = describe(config, models, passes, planner, device)
    log_start(details)
    return Built(
        engine=_make_engine(
            config, models, passes, planner, observer, record_times, details, device
        ),
        target=models.target,
        draft=draft,
        proposer=passes.proposer,
        memory=passes.memory,
        linear=models.cpu_kernels.linear if models.cpu_kernels is not None else widening_linear,
        runner=passes.target,
        pool=passes.pool,
        context_kernel=context_kernel(models.cpu_kernels) or models.device_backend.context_kernel,
    )


def _cost_rig(
    config: EngineConfig, models: PreparedModels, passes: ModelPasses, device: torch.device
) -> CostRig:
    """Select what cost profiling needs of the engine's passes."""
    return CostRig(
        target=passes.target,
        proposer=passes.proposer,
        num_pages=passes.memory.num_pages,
        page_size=passes.memory.page_size,
        max_len=passes.max_len,
        max_running=config.max_running_requests,
        width=resolve_window(config, models.block_size),
        capture_sizes=passes.graphs.capture_sizes,
        device=device,
    )


def _cost_correction(
    planner: ProposalPlanner, *, is_measured: bool, device: torch.device
) -> Callable[[StepTimes], None] | None:
    """Choose what corrects measured costs by step times; None on a device that runs ahead."""
    if not isinstance(planner, PlannerByLoad) or not is_measured or device.type != "cpu":
        return None
    return planner.record_times


def _make_engine(
    config: EngineConfig,
    models: PreparedModels,
    passes: ModelPasses,
    planner: ProposalPlanner,
    observer: StepObserver | None,
    record_times: Callable[[StepTimes], None] | None,
    details: dict[str, object],
    device: torch.device,
) -> EngineCore:
    """Connect the scheduler and the step loop to the passes."""
    target, memory = models.target, passes.memory
    pages = PageManager(
        num_pages=memory.num_pages, page_size=memory.page_size, prefix_cache=config.prefix_cache
    )
    scheduler = Scheduler(
        pages=pages,
        limits=RequestLimits(max_len=passes.max_len, vocab_size=target.vocab_size),
        eos_ids=target.eos_ids,
        num_slots=models.num_slots,
        planner=planner,
        num_draft_tokens=resolve_window(config, models.block_size) - 1,
        max_running=config.max_running_requests,
        max_queued=config.max_queued_requests,
        order=RequestOrder(config.policy, config.priority_order, config.priority_aging_s),
        prefill_chunk_tokens=config.prefill_chunk_tokens,
    )
    ahead = None
    if isinstance(passes.proposer, GraphedProposer) and passes.proposer.can_draft_ahead(1):
        ahead = DraftAhead(proposer=passes.proposer, scheduler=scheduler, device=device)
    return EngineCore(
        target=passes.target,
        proposer=passes.proposer,
        scheduler=scheduler,
        pages=pages,
        metrics=StepMetrics(num_positions=resolve_window(config, models.block_size) - 1),
        info=EngineInfo(
            served_max_len=passes.max_len,
            vocab_size=target.vocab_size,
            block_size=models.block_size,
            eos_token_ids=tuple(sorted(target.eos_ids)),
            details=details,
        ),
        context_kv_mode=config.stacked_context_kv,
        device=device,
        budget=make_budget(config, models.draft, planner),
        ahead=ahead,
        observer=observer,
        record_times=record_times,
    )
