"""The heavy door: loads models, sizes the pool, wires the engine. Only the command line uses it."""

import logging
from dataclasses import dataclass

import torch
from torch import nn

from draft import ContextKernel, LinearFunction, Proposer, widening_linear
from engine import attention_hook
from engine.acceleration import Acceleration, choose_acceleration
from engine.acceptance_watch import AcceptanceWatch
from engine.admission import Limits, served_len
from engine.api import EngineInfo
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.cost_measuring import CostRig
from engine.describe import describe, log_start
from engine.draft_building import (
    choose_draft_path,
    context_kernel,
    make_budget,
    make_draft_budget,
    make_proposer,
)
from engine.draft_check import check_acceleration
from engine.draft_loading import LoadedDraft, load_draft
from engine.draft_precision import choose_precision
from engine.draft_trials import explain_collapse
from engine.engine import Engine
from engine.fused_norms import fuse_norms
from engine.graphs.building import Graphs, record_graphs
from engine.graphs.building import Limits as GraphLimits
from engine.graphs.scratch import ScratchPage
from engine.interval_log import IntervalLog
from engine.memory import GIB, MemoryPlan
from engine.metrics import StepMetrics
from engine.native.compiling import NativeUnavailable
from engine.native.large_pages import settle
from engine.native.linear import speed_up
from engine.native.setup import Native, prepare_native
from engine.pool_size import plan_pool
from engine.quantization import quantise
from engine.recording import RecentTexts, StepRecorder
from engine.resolve import (
    configure_threads,
    resolve_device,
    resolve_dtype,
    resolve_num_draft_tokens,
)
from engine.scheduler import Scheduler
from engine.self_check import ShapeProbe, ask_alone, probe_shapes
from engine.step_costs import StepCosts
from engine.target import Target, TargetModel
from engine.target_building import choose_path, make_target
from engine.target_loading import LoadedTarget, load_target
from engine.thread_team import dismiss_helpers
from engine.worker import EngineWorker
from kv_pool import KVPool, PagePool

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """An engine that no thread owns yet, and the models in it (benchmarks and tests look)."""

    engine: Engine
    target: LoadedTarget
    draft: LoadedDraft | None
    proposer: Proposer
    memory: MemoryPlan
    linear: LinearFunction  # what stands for F.linear here
    runner: Target  # the engine's own target passes
    pool: KVPool
    context_kernel: ContextKernel | None  # what writes context in the stacked form


def build_engine(config: EngineConfig) -> EngineWorker:
    """Load both models and start the engine's thread.

    Raises LoadError for anything that cannot be served, before a thread exists.
    """
    device = resolve_device(config)
    num_threads = configure_threads(config, device)
    texts = RecentTexts()
    built = load_engine(config, device=device, recorder=texts)
    dismiss_helpers()  # this thread has computed; from now on the engine's own does

    def diagnose() -> str | None:
        if built.draft is None:
            return None
        return explain_collapse(built.target, built.draft, texts.texts(), device=device)

    watch = AcceptanceWatch(diagnose=diagnose)
    return EngineWorker(
        built.engine,
        num_threads=num_threads,
        observers=(IntervalLog(), watch),
        has_collapsed=lambda: watch.has_collapsed,
        tells_late=device.type == "cuda",
    )


def load_engine(
    config: EngineConfig, *, device: torch.device, recorder: StepRecorder | None = None
) -> Built:
    """Load what the config names and wire it; see `wire_engine`."""
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
    return wire_engine(config, target=target, draft=draft, device=device, recorder=recorder)


def wire_engine(
    config: EngineConfig,
    *,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    device: torch.device,
    recorder: StepRecorder | None = None,
    acceleration: Acceleration | None = None,
    costs: StepCosts | None = None,
    tap_layers: tuple[int, ...] | None = None,
) -> Built:
    """Check the target, size the pool and connect the parts.

    tap_layers: what the target's passes hand over, to the recorder that is; with a draft they are
    the draft's own. acceleration: None chooses what the config and the device allow.
    costs: what the draft budget goes by; None measures them if there is one.
    Raises LoadError when the target fails its self-check or the memory does not suffice.
    """
    target = quantise(config, target, device)
    target.model.set_attn_implementation(attention_hook.IMPLEMENTATION)  # type: ignore[operator]
    probe = probe_shapes(target.model, num_layers=target.num_layers, device=device)
    if draft is not None:
        assert tap_layers is None, "a draft reads its own taps"
        tap_layers = draft.config.tap_layers
    tap_layers = tap_layers or ()
    reference = ask_alone(
        target.model, probe=probe, tap_layers=tap_layers, vocab_size=target.vocab_size
    )
    if device.type == "cuda":
        fuse_norms(target.model)
    native, reason = _prepare_native(config, target, draft, device)
    acceleration = acceleration or choose_acceleration(config, device)
    if draft is not None:
        acceleration = check_acceleration(draft.network, acceleration, device=device)
    path = choose_path(
        target,
        reference,
        tap_layers=tap_layers,
        probe=probe,
        native=native,
        reason=reason,
        acceleration=acceleration,
        device=device,
    )
    acceleration = path.acceleration
    block_size = draft.config.block_size if draft is not None else 0
    num_slots = draft.config.num_slots if draft is not None else 0
    attention = acceleration.make_attention(config.page_size)
    memory = plan_pool(
        config,
        target=target,
        draft=draft,
        probe=probe,
        attention=attention,
        records_graphs=acceleration.recorder is not None,
        device=device,
    )
    pool = _make_pool(memory, target, draft, probe, acceleration, device)
    draft_path = choose_draft_path(draft, pool, native=native, reason=reason)
    proposer = make_proposer(
        config,
        draft,
        pool,
        acceleration.make_attention(config.page_size),
        native=native,
        path=draft_path,
        fused=acceleration.context_kernel,
    )
    pages = PagePool(
        num_pages=memory.num_pages, page_size=memory.page_size, prefix_cache=config.prefix_cache
    )
    max_len = served_len(
        model_len=target.max_len, pool_tokens=memory.num_tokens, num_slots=num_slots
    )
    metrics = StepMetrics(block_size=block_size)
    runner = make_target(
        target, pool, tap_layers=tap_layers, native=path.native, attention=attention
    )
    graphs = _record_graphs(
        config, acceleration, target, runner, proposer, pool, tap_layers, max_len, device
    )
    proposer = graphs.proposer
    num_draft_tokens = resolve_num_draft_tokens(config, block_size)
    rig = CostRig(
        target=graphs.target,
        proposer=proposer,
        num_pages=memory.num_pages,
        page_size=memory.page_size,
        max_len=max_len,
        max_running=config.max_running_requests,
        width=num_draft_tokens + 1,
        tiers=graphs.tiers,
        device=device,
    )
    draft_budget = make_draft_budget(config, draft, rig, costs=costs)
    scheduler = Scheduler(
        pages=pages,
        limits=Limits(max_len=max_len, vocab_size=target.vocab_size),
        eos_ids=target.eos_ids,
        num_slots=num_slots,
        num_draft_tokens=num_draft_tokens,
        max_running=config.max_running_requests,
        max_queued=config.max_queued_requests,
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        draft_budget=draft_budget,
    )
    core = EngineCore(
        target=graphs.target,
        proposer=proposer,
        scheduler=scheduler,
        metrics=metrics,
        device=device,
        budget=make_budget(config, draft),
        recorder=recorder,
    )
    details = describe(
        config,
        target,
        draft,
        proposer,
        graphs,
        memory,
        path,
        draft_path,
        draft_budget,
        max_len,
        device,
    )
    log_start(details)
    engine = Engine(
        core=core,
        scheduler=scheduler,
        proposer=proposer,
        pages=pages,
        metrics=metrics,
        info=EngineInfo(
            served_max_len=max_len,
            vocab_size=target.vocab_size,
            block_size=block_size,
            eos_token_ids=tuple(sorted(target.eos_ids)),
            details=details,
        ),
        context_kv_mode=config.stacked_context_kv,
    )
    return Built(
        engine=engine,
        target=target,
        draft=draft,
        proposer=proposer,
        memory=memory,
        linear=native.linear if native is not None else widening_linear,
        runner=graphs.target,
        pool=pool,
        context_kernel=context_kernel(native) or acceleration.context_kernel,
    )


def _prepare_native(
    config: EngineConfig,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    device: torch.device,
) -> tuple[Native | None, str | None]:
    """Native kernels for both models' linear layers, or the reason why not."""
    native, reason = None, None
    try:
        native = prepare_native(
            wanted=config.native_kernels != "off", dtype=target.dtype, device=device
        )
    except NativeUnavailable as error:
        reason = str(error)
    if draft is not None:
        choose_precision(config, draft.network, native=native, device=device)
    if native is None:
        return None, reason
    moved = settle(target.model, borrowers=[draft.network] if draft is not None else [])
    speed_up(target.model, native.linear, native.int8_product)
    if draft is not None:
        moved += settle(draft.network, besides=_to_be_stacked(draft))
    if moved:
        logger.info("moved %.2f GiB of weights into large pages; none is held twice", moved / GIB)
    return native, None


def _to_be_stacked(draft: LoadedDraft) -> list[nn.Parameter]:
    """What the context writer gathers in a storage of its own: moved before, it would lie twice."""
    owners = [m for a in draft.network.attentions for m in (a.k_proj, a.v_proj, a.k_norm)]
    return [parameter for owner in owners for parameter in owner.parameters()]


def _make_pool(
    memory: MemoryPlan,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    probe: ShapeProbe,
    acceleration: Acceleration,
    device: torch.device,
) -> KVPool:
    """The storages, with one page more than is ever handed out where graphs need it for padding."""
    return KVPool(
        num_pages=memory.num_pages + (acceleration.recorder is not None),
        page_size=memory.page_size,
        target_shapes=[probe.shapes[layer] for layer in sorted(probe.shapes)],
        target_dtype=target.dtype,
        num_draft_layers=draft.config.num_layers if draft is not None else 0,
        draft_shape=draft.config.kv_shape if draft is not None else None,
        draft_dtype=draft.network.dtype if draft is not None else None,
        device=device,
    )


def _record_graphs(
    config: EngineConfig,
    acceleration: Acceleration,
    target: LoadedTarget,
    eager: TargetModel,
    proposer: Proposer,
    pool: KVPool,
    tap_layers: tuple[int, ...],
    max_len: int,
    device: torch.device,
) -> Graphs:
    """Both models' passes recorded, where the device has graphs."""
    if acceleration.recorder is None:
        return Graphs(eager, proposer, (), acceleration.graphs_reason)
    return record_graphs(
        target=eager,
        proposer=proposer,
        make_target=lambda attention: make_target(
            target, pool, tap_layers=tap_layers, native=None, attention=attention
        ),
        make_attention=lambda: acceleration.make_attention(config.page_size),
        recorder=acceleration.recorder,
        limits=GraphLimits(
            max_running=config.max_running_requests,
            max_len=max_len,
            width=resolve_num_draft_tokens(config, proposer.block_size) + 1,
        ),
        scratch=ScratchPage(page=pool.num_pages - 1, page_size=pool.page_size),
        device=device,
    )
