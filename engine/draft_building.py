"""Chooses how the draft runs: by the fastest kernels that agree with PyTorch."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from draft import (
    BlockKernel,
    BlockRequest,
    ContextKernel,
    DSparkNetwork,
    DSparkProposer,
    NoDraft,
    Proposer,
    widening_linear,
)
from draft.calibration import Scaling
from engine.budget import ConfidenceThreshold, VerifyAll, VerifyBudget
from engine.config import EngineConfig
from engine.draft_loading import LoadedDraft
from engine.errors import LoadError
from engine.native.compiling import NativeUnavailable
from engine.native.draft_context import NativeContext
from engine.native.draft_round import NativeRound
from engine.native.linear import as_loaded
from engine.native.setup import DRAFT_ROWS, LINEAR_ROWS, Native
from kv_pool import AttentionBackend, KVPool, ReferenceAttention

logger = logging.getLogger(__name__)

_CHECK_PAGE_SIZE = 4  # tokens
_CHECK_CONTEXTS = (5, 0, 70)  # tokens; the longest spans two blocks of the native attention's keys
_TOLERANCE = 1e-4  # relative to the largest magnitude: rounding in another order


@dataclass(frozen=True, slots=True)
class DraftPath:
    """How draft passes run, and why not faster."""

    kernel: BlockKernel | None  # None: PyTorch runs every one
    reason: str | None  # why kernel is None
    chain_reason: str | None = None  # why PyTorch picks the tokens all the same

    @property
    def name(self) -> str:
        return "native" if self.kernel is not None else "torch"


def make_budget(config: EngineConfig, draft: LoadedDraft | None) -> VerifyBudget:
    """Raises LoadError for a threshold without confidences to hold against it."""
    threshold = config.confidence_threshold
    if threshold is None or draft is None:
        return VerifyAll()
    if not draft.config.has_confidence_head:
        raise LoadError(
            "speculative.confidence.mode: found threshold, but the draft has no confidence head; "
            "accepted: off"
        )
    fitted = draft.calibration
    as_said = Scaling.identity(draft.config.block_size)
    return ConfidenceThreshold(
        threshold=threshold, scaling=as_said if fitted is None else fitted.scaling
    )


def choose_draft_path(
    draft: LoadedDraft | None, pool: KVPool, *, native: Native | None, reason: str | None
) -> DraftPath:
    """The native pass if there is one for this draft and it agrees; reason: why native is None."""
    if draft is None or native is None:
        return DraftPath(None, reason)

    def kernel_over(some_pool: KVPool, max_rows: int) -> NativeRound:
        return NativeRound(
            kernels=native.kernels,
            network=draft.network,
            pool=some_pool,
            max_rows=max_rows,
            num_threads=native.num_threads,
        )

    num_slots = draft.config.num_slots
    try:
        difference = difference_of(
            draft.network, lambda small: kernel_over(small, len(_CHECK_CONTEXTS) * num_slots)
        )
        if not difference <= _TOLERANCE:  # NaN fails too
            logger.warning("native draft passes differ from PyTorch's by %.1e", difference)
            return DraftPath(None, "it does not agree with PyTorch")
        kernel = kernel_over(pool, DRAFT_ROWS)
    except NativeUnavailable as error:
        return DraftPath(None, str(error))
    return DraftPath(kernel, None, kernel.chain_reason)


def make_proposer(
    config: EngineConfig,
    draft: LoadedDraft | None,
    pool: KVPool,
    attention: AttentionBackend,
    *,
    native: Native | None,
    path: DraftPath,
    fused: ContextKernel | None,
) -> Proposer:
    """The draft over the pool. `fused` writes context where no native kernel does.

    Raises LoadError when the stacked writer is asked for in vain.
    """
    if draft is None:
        return NoDraft()
    linear = native.linear if native is not None else widening_linear
    try:
        return DSparkProposer(
            network=draft.network,
            pool=pool,
            attention=attention,
            context_kv=config.stacked_context_kv,
            linear=linear,
            block_kernel=path.kernel,
            context_kernel=context_kernel(native) or fused,
        )
    except ValueError as error:
        raise LoadError(f"speculative.stacked_context_kv is 'on': {error}") from error


def context_kernel(native: Native | None) -> ContextKernel | None:
    """For any draft and pool in float32 on the CPU; PyTorch writes what it declines."""
    if native is None:
        return None
    return NativeContext(
        kernels=native.kernels,
        linear=native.linear,
        max_rows=LINEAR_ROWS,
        num_threads=native.num_threads,
    )


@torch.inference_mode()
def difference_of(network: DSparkNetwork, kernel_over: Callable[[KVPool], BlockKernel]) -> float:
    """Largest relative difference between a kernel's pass and PyTorch's, infinite for other tokens.

    The sequences, with random keys and values for context, lie in a small pool of this check.
    Raises NativeUnavailable when the kernel declines.
    """
    pool, tables, lengths = _check_pool(network)
    # Layer by layer: the stacked form would move the weights once more.
    reference = DSparkProposer(
        network=network,
        pool=pool,
        attention=ReferenceAttention(page_size=pool.page_size, device=pool.draft_keys.device),
        context_kv="off",
    )
    request = _check_request(network, tables, lengths, page_size=pool.page_size)
    kernel = kernel_over(pool)
    found = kernel.run(request)
    if found is None:
        raise NativeUnavailable(kernel.reason or "it declines a small batch")
    with as_loaded(network):
        expected, block = reference.run_block(request), reference.propose(request)
    picked = found.draft_ids
    if picked is not None and not torch.equal(picked, block.draft_ids):
        return float("inf")
    return max(
        float((a - b).abs().max() / b.abs().max())
        for a, b in (
            (found.hidden, expected.hidden),
            (found.base_logits, expected.base_logits),
        )
    )


def _check_pool(network: DSparkNetwork) -> tuple[KVPool, list[list[int]], list[int]]:
    """A pool full of noise, page tables whose pages lie between one another, context lengths."""
    num_slots = network.config.num_slots
    longest = min(a.rotary.num_positions for a in network.attentions) - num_slots
    lengths = [min(length, longest) for length in _CHECK_CONTEXTS]
    num_pages = -(-(max(lengths) + num_slots) // _CHECK_PAGE_SIZE)
    device = network.norm.weight.device
    pool = KVPool(
        num_pages=len(lengths) * num_pages,
        page_size=_CHECK_PAGE_SIZE,
        target_shapes=[],
        target_dtype=network.dtype,
        num_draft_layers=network.config.num_layers,
        draft_shape=network.config.kv_shape,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(0)
    pool.draft_keys.normal_(generator=generator)
    pool.draft_values.normal_(generator=generator)
    tables = [list(range(b, pool.num_pages, len(lengths))) for b in range(len(lengths))]
    return pool, tables, lengths


def _check_request(
    network: DSparkNetwork, tables: list[list[int]], lengths: list[int], *, page_size: int
) -> BlockRequest:
    device, num_slots = network.norm.weight.device, network.config.num_slots
    starts = torch.tensor(lengths, device=device)
    at = starts[:, None] + torch.arange(num_slots, device=device)  # (B, N)
    pages = torch.tensor(tables, device=device).gather(1, at // page_size)
    return BlockRequest(
        anchor_ids=(starts + 1) * 7919 % network.config.vocab_size,
        anchor_positions=starts,
        slots=pages * page_size + at % page_size,
        page_tables=tables,
        context_lens=lengths,
    )
