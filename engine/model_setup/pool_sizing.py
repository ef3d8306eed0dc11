"""Sizes the KV pool by a memory setting; on CUDA after measuring the largest step."""

import torch
from torch import Tensor, nn

from engine.config import EngineConfig
from engine.cuda_graphs.capture_sizes import CaptureSizes
from engine.cuda_graphs.memory import GraphSizes
from engine.errors import LoadError
from engine.loading.draft import LoadedDraft
from engine.loading.target import LoadedTarget
from engine.model_setup.draft_backend import DraftPath, make_proposer
from engine.model_setup.memory_plan import GIB, MemoryPlan, size_text
from engine.model_setup.peak_step import PeakStep
from engine.model_setup.target_backend import make_target
from engine.platform.auto_settings import resolve_lookup_tokens, resolve_widths, resolve_window
from engine.platform.host import available_memory_bytes
from kv_pool import AttentionBackend, FixedBackend, KVLayout, KVPool

_SHORT_REQUEST = 32  # tokens; a pool must hold this and a draft block


def plan_pool(
    config: EngineConfig,
    *,
    layout: KVLayout,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    attention: AttentionBackend,
    records_graphs: bool,
) -> MemoryPlan:
    """Choose the number of pages, after the bytes of weights, largest step and graphs.

    Raises LoadError when the pool would be too small for a request, or larger than the memory.
    """
    device = layout.device
    target_bytes = parameter_bytes(target.model)
    draft_bytes = parameter_bytes(draft.network, besides=target.model) if draft is not None else 0

    def measured(chunk_tokens: int) -> int:
        if device.type != "cuda":
            return 0
        return _measure_step(config, target, draft, layout, attention, chunk_tokens=chunk_tokens)

    step_bytes = measured(config.prefill_chunk_tokens)
    graph_bytes = 0
    if records_graphs:  # outputs, intermediates, the plans of each capture, the scratch page
        sizes = _captured_sizes(config, target, draft)
        plan_bytes = attention.fixed_plan_bytes if isinstance(attention, FixedBackend) else 0
        graph_bytes = sizes.output_bytes + measured(0) + layout.bytes_per_page
        graph_bytes += sizes.num_graphs * plan_bytes
    left: int | None  # bytes for the pool at most; None where the system reports none
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        taken = max(total - free, target_bytes + draft_bytes) + step_bytes + graph_bytes
        setting = f"kv.memory_fraction={config.memory_fraction}"
        budget_bytes, left = int(total * config.memory_fraction) - taken, total - taken
        owner = "this device has after weights, the largest step and graphs"
    else:
        setting = f"kv.memory_gib={config.memory_gib}"
        budget_bytes, left = int(config.memory_gib * GIB), available_memory_bytes()
        owner = "this machine has available"
    num_pages = max(budget_bytes, 0) // layout.bytes_per_page
    if config.num_pages is not None:
        setting, num_pages = f"kv.num_pages={config.num_pages}", config.num_pages
    plan = MemoryPlan(
        num_pages=num_pages,
        page_size=layout.page_size,
        bytes_per_page=layout.bytes_per_page,
        target_bytes=target_bytes,
        draft_bytes=draft_bytes,
        step_bytes=step_bytes,
        graph_bytes=graph_bytes,
        budget=setting,
    )
    num_slots = draft.config.num_slots if draft is not None else 0
    min_tokens = _SHORT_REQUEST + max(num_slots, resolve_lookup_tokens(config))
    if plan.num_tokens < min_tokens:
        raise LoadError(
            f"{setting}: found room for {plan.num_tokens} tokens of KV memory; accepted: at least "
            f"{min_tokens}, for one short request and its draft tokens"
        )
    if left is not None and plan.pool_bytes > left:
        raise LoadError(
            f"{setting}: found {size_text(plan.pool_bytes)} of KV memory; accepted: at most "
            f"{size_text(max(left, 0))}, which {owner}"
        )
    return plan


def _captured_sizes(
    config: EngineConfig, target: LoadedTarget, draft: LoadedDraft | None
) -> GraphSizes:
    block_size = draft.config.block_size if draft is not None else 0
    return GraphSizes(
        capture_sizes=CaptureSizes.up_to(config.max_running_requests),
        widths=resolve_widths(config, block_size),
        vocab_size=target.vocab_size,
        aux_size=draft.config.aux_size if draft is not None else 0,
        block_size=block_size,
        itemsize=target.dtype.itemsize,
    )


def parameter_bytes(module: nn.Module, *, besides: nn.Module | None = None) -> int:
    """Count the bytes of a module's parameters and buffers, without those of another module."""
    others = {t.untyped_storage().data_ptr() for t in _tensors(besides)} if besides else set()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in _tensors(module)}
    return sum(s.nbytes() for address, s in storages.items() if address not in others)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


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
    """Measure the peak bytes of the largest step, or of its rounds alone without a chunk.

    The step runs over a small pool whose pages all sequences share. Its results are meaningless,
    but its memory is that of a real step. Raises LoadError when it does not fit with the weights.
    """
    device = layout.device
    block_size = draft.config.block_size if draft is not None else 0
    chunk_tokens = min(chunk_tokens, target.max_len)
    step = PeakStep(
        max_running=config.max_running_requests,
        num_draft_tokens=resolve_window(config, block_size) - 1,
        block_size=block_size,
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
            "with the weights into the device's memory; lower scheduler.max_running_requests or "
            "scheduler.prefill_chunk_tokens"
        ) from error
    torch.cuda.synchronize(device)
    peak: int = torch.cuda.max_memory_allocated(device) - before
    if chunk_tokens:
        step.run_tail(runner, max_len=target.max_len, device=device)
    del pool, runner, proposer
    torch.cuda.empty_cache()
    return peak
