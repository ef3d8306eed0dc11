"""Connects both models to one pool, as captured graphs where the device has them."""

from dataclasses import dataclass

from draft import Proposer
from engine.config import EngineConfig
from engine.cuda_graphs import GraphCapturer
from engine.cuda_graphs.building import CaptureLimits as GraphLimits
from engine.cuda_graphs.building import Graphs, capture_graphs
from engine.cuda_graphs.scratch import ScratchPage
from engine.errors import LoadError
from engine.model_setup.draft_backend import DraftPath, choose_draft_path, make_proposer
from engine.model_setup.memory_plan import MemoryPlan
from engine.model_setup.pool_sizing import plan_pool
from engine.model_setup.prepared_models import PreparedModels
from engine.model_setup.target_backend import make_target
from engine.platform.auto_settings import resolve_widths, resolve_window
from engine.runner.target_model import Target, TargetModel
from engine.scheduler.request_limits import served_len
from kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class ModelPasses:
    """Holds the passes of target and draft, and their shared memory."""

    memory: MemoryPlan
    pool: KVPool
    graphs: Graphs
    draft_path: DraftPath
    max_len: int  # tokens of one request at most

    @property
    def target(self) -> Target:
        return self.graphs.target

    @property
    def proposer(self) -> Proposer:
        return self.graphs.proposer


def make_model_passes(config: EngineConfig, models: PreparedModels) -> ModelPasses:
    """Size the pool and connect both models to it. Raises LoadError when memory is too small."""
    device_backend = models.device_backend
    attention = device_backend.make_attention(config.page_size)
    memory = plan_pool(
        config,
        target=models.target,
        draft=models.draft,
        layout=models.layout,
        attention=attention,
        records_graphs=device_backend.capturer is not None,
    )
    # Graphs pad with writes to one more page, which no sequence owns.
    pool = KVPool(models.layout, num_pages=memory.num_pages + (device_backend.capturer is not None))
    draft_path = choose_draft_path(
        models.draft, pool, cpu_kernels=models.cpu_kernels, reason=models.reason
    )
    proposer = make_proposer(
        config,
        models.draft,
        pool,
        device_backend.make_attention(config.page_size),
        cpu_kernels=models.cpu_kernels,
        path=draft_path,
        fused=device_backend.context_kernel,
    )
    runner = make_target(
        models.target,
        pool,
        tap_layers=models.tap_layers,
        cpu_kernels=models.path.cpu_kernels,
        attention=attention,
        fused=models.path.fused,
    )
    max_len = served_len(
        model_len=models.target.max_len,
        pool_tokens=memory.num_tokens,
        num_slots=max(models.num_slots, resolve_window(config, models.block_size) - 1),
    )
    graphs = _record_graphs(config, models, runner, proposer, pool, max_len)
    return ModelPasses(memory, pool, graphs, draft_path, max_len)


def _record_graphs(
    config: EngineConfig,
    models: PreparedModels,
    eager: TargetModel,
    proposer: Proposer,
    pool: KVPool,
    max_len: int,
) -> Graphs:
    """Capture the passes of both models, where the device has graphs.

    Raises LoadError when the config demands graphs and there are none.
    """
    device_backend = models.device_backend
    graphs = Graphs(eager, proposer, (), device_backend.graphs_reason)
    if device_backend.capturer is not None:
        graphs = _capture(config, models, device_backend.capturer, eager, proposer, pool, max_len)
    if config.graphs == "on" and graphs.reason is not None:
        raise LoadError(f"device.graphs: found on, but {graphs.reason}; accepted: auto, off")
    return graphs


def _capture(
    config: EngineConfig,
    models: PreparedModels,
    capturer: GraphCapturer,
    eager: TargetModel,
    proposer: Proposer,
    pool: KVPool,
    max_len: int,
) -> Graphs:
    device_backend = models.device_backend
    return capture_graphs(
        target=eager,
        proposer=proposer,
        make_target=lambda attention: make_target(
            models.target,
            pool,
            tap_layers=models.tap_layers,
            cpu_kernels=None,
            attention=attention,
            fused=models.path.fused,
        ),
        make_attention=lambda: device_backend.make_attention(config.page_size),
        capturer=capturer,
        limits=GraphLimits(
            max_running=config.max_running_requests,
            max_len=max_len,
            widths=resolve_widths(config, proposer.block_size),
        ),
        scratch=ScratchPage(page=pool.num_pages - 1, page_size=pool.page_size),
        device=models.layout.device,
    )
