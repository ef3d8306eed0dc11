"""Turns a memory setting into a number of pages; on CUDA after measuring the largest step."""

import torch
from torch import Tensor, nn

from engine.config import EngineConfig
from engine.cuda_graphs.capture_sizes import CaptureSizes
from engine.cuda_graphs.memory import GraphSizes
from engine.errors import LoadError
from engine.loading.draft import LoadedDraft
from engine.loading.target import LoadedTarget
from engine.model_setup.draft_backend import DraftPath, make_proposer
from engine.model_setup.memory_plan import (
    GIB,
    MemoryPlan,
    cuda_budget,
    pages_for_budget,
    require_tokens,
    size_text,
)
from engine.model_setup.peak_step import PeakStep
from engine.model_setup.target_backend import make_target
from engine.platform.auto_settings import resolve_num_draft_tokens
from engine.platform.host import available_memory_bytes
from kv_pool import AttentionBackend, FixedBackend, KVLayout, KVPool

_SHORT_REQUEST = 32  # tokens; a pool that cannot hold this and a block is refused


def plan_pool(
    config: EngineConfig,
    *,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    layout: KVLayout,
    attention: AttentionBackend,
    records_graphs: bool,
) -> MemoryPlan:
    """Decide the number of pages. Raises LoadError when too few would fit."""
    device, bytes_per_page = layout.device, layout.bytes_per_page
    target_bytes = parameter_bytes(target.model)
    draft_bytes = parameter_bytes(draft.network, besides=target.model) if draft is not None else 0

    def measured(chunk_tokens: int) -> int:
        if device.type != "cuda":
            return 0
        return _measure_step(config, target, draft, layout, attention, chunk_tokens=chunk_tokens)

    step_bytes = measured(config.prefill_chunk_tokens)
    graph_bytes = 0
    if records_graphs:  # outputs, intermediates, the plans of each recording, the scratch page
        sizes = _recorded_sizes(config, target, draft)
        plan_bytes = attention.fixed_plan_bytes if isinstance(attention, FixedBackend) else 0
        graph_bytes = sizes.output_bytes + measured(0) + bytes_per_page
        graph_bytes += sizes.num_graphs * plan_bytes
    min_tokens = _SHORT_REQUEST + (draft.config.num_slots if draft is not None else 0)
    num_pages, budget = _num_pages(
        config,
        bytes_per_page,
        target_bytes + draft_bytes,
        step_bytes,
        graph_bytes,
        min_tokens,
        device,
    )
    if device.type == "cpu":
        _require_available(num_pages * bytes_per_page, budget)
    return MemoryPlan(
        num_pages=num_pages,
        page_size=layout.page_size,
        bytes_per_page=bytes_per_page,
        target_bytes=target_bytes,
        draft_bytes=draft_bytes,
        step_bytes=step_bytes,
        graph_bytes=graph_bytes,
        budget=budget,
    )


def _recorded_sizes(
    config: EngineConfig, target: LoadedTarget, draft: LoadedDraft | None
) -> GraphSizes:
    block_size = draft.config.block_size if draft is not None else 0
    return GraphSizes(
        capture_sizes=CaptureSizes.up_to(config.max_running_requests),
        width=(config.num_draft_tokens or block_size) + 1,
        vocab_size=target.vocab_size,
        aux_size=draft.config.aux_size if draft is not None else 0,
        block_size=block_size,
        itemsize=target.dtype.itemsize,
    )


def _require_available(pool_bytes: int, budget: str) -> None:
    available = available_memory_bytes()
    if available is not None and pool_bytes > available:
        raise LoadError(
            f"{budget} asks for {size_text(pool_bytes)} of KV memory; this machine has "
            f"{size_text(available)} available"
        )


def _require_left(pool_bytes: int, left: int, budget: str) -> None:
    """Raises LoadError where a step would find no memory beside such a pool."""
    if pool_bytes > left:
        raise LoadError(
            f"{budget} asks for {size_text(pool_bytes)} of KV memory; weights, the largest step "
            f"and graphs leave {size_text(max(left, 0))} of this device for it"
        )


def parameter_bytes(module: nn.Module, *, besides: nn.Module | None = None) -> int:
    """Bytes of a module's parameters and buffers, shared ones once, another's left out."""
    others = {t.untyped_storage().data_ptr() for t in _tensors(besides)} if besides else set()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in _tensors(module)}
    return sum(s.nbytes() for address, s in storages.items() if address not in others)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _num_pages(
    config: EngineConfig,
    bytes_per_page: int,
    weight_bytes: int,
    step_bytes: int,
    graph_bytes: int,
    min_tokens: int,
    device: torch.device,
) -> tuple[int, str]:
    def left_on_device(fraction: float) -> int:
        free, total = torch.cuda.mem_get_info(device)
        return cuda_budget(
            total_bytes=total,
            fraction=fraction,
            used_bytes=max(total - free, weight_bytes),
            step_bytes=step_bytes,
            graph_bytes=graph_bytes,
        )

    if config.num_pages is not None:
        budget = f"kv.num_pages={config.num_pages}"
        require_tokens(config.num_pages * config.page_size, min_tokens=min_tokens, budget=budget)
        if device.type == "cuda":
            _require_left(config.num_pages * bytes_per_page, left_on_device(1.0), budget)
        return config.num_pages, budget
    if device.type == "cuda":
        budget_bytes = left_on_device(config.memory_fraction)
        budget = f"kv.memory_fraction={config.memory_fraction}"
    else:
        budget_bytes = int(config.memory_gib * GIB)
        budget = f"kv.memory_gib={config.memory_gib}"
    num_pages = pages_for_budget(
        budget_bytes=budget_bytes,
        bytes_per_page=bytes_per_page,
        page_size=config.page_size,
        min_tokens=min_tokens,
        budget=budget,
    )
    return num_pages, budget


@torch.inference_mode()
def _measure_step(
    config: EngineConfig,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    layout: KVLayout,
    attention: AttentionBackend,
    *,
    chunk_tokens: int,
) -> int:
    """Peak bytes above the weights of the largest step, or of rounds alone without a chunk.

    The step runs over one small pool whose pages every sequence shares: what is computed is
    nonsense, what it needs is not. Raises LoadError where it does not fit beside the weights.
    """
    device = layout.device
    block_size = draft.config.block_size if draft is not None else 0
    chunk_tokens = min(chunk_tokens, target.max_len)  # no position lies beyond
    step = PeakStep(
        max_running=config.max_running_requests,
        num_draft_tokens=resolve_num_draft_tokens(config, block_size),
        num_slots=draft.config.num_slots if draft is not None else 0,
        chunk_tokens=chunk_tokens,
        page_size=layout.page_size,
    )
    pool = KVPool(layout, num_pages=step.num_pages)
    tap_layers = draft.config.tap_layers if draft is not None else ()
    runner = make_target(target, pool, tap_layers=tap_layers, cpu_kernels=None, attention=attention)
    proposer = make_proposer(
        config, draft, pool, attention, cpu_kernels=None, path=DraftPath(None, None), fused=None
    )
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        step.run(runner, proposer, device=device)
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"a step of {step.max_running} sequences and {chunk_tokens} prompt tokens does not fit "
            "beside the weights; lower scheduler.max_running_requests or "
            "scheduler.prefill_chunk_tokens"
        ) from error
    torch.cuda.synchronize(device)
    peak: int = torch.cuda.max_memory_allocated(device) - before
    if chunk_tokens:
        step.run_tail(runner, max_len=target.max_len, device=device)
    del pool, runner, proposer
    torch.cuda.empty_cache()
    return peak
