"""Chooses the kernels of the draft: the fastest ones that agree with PyTorch."""

import logging
from dataclasses import dataclass

import torch

from draft import (
    BlockKernel,
    ContextKernel,
    DSparkProposer,
    NoDraft,
    Proposer,
    widening_linear,
)
from draft.calibration import Scaling
from draft.network.matrices import matrices_dtype
from engine.config import EngineConfig
from engine.cpu_kernels.compiling import CpuKernelsUnavailable
from engine.cpu_kernels.draft_context import CpuContextWriter
from engine.cpu_kernels.draft_round import CpuDraftRound
from engine.cpu_kernels.setup import DRAFT_ROWS, LINEAR_ROWS, CpuKernels
from engine.draft_length.confidence_cutoff import ConfidenceThreshold, VerifyAll, VerifyBudget
from engine.draft_length.cost_model import StepCosts
from engine.draft_length.cost_profiling import CostRig, measure_costs
from engine.errors import LoadError
from engine.loading.draft import LoadedDraft
from engine.model_setup.draft_check import CONTEXTS, difference_of
from engine.platform.auto_settings import resolve_num_draft_tokens
from engine.proposers.confidence_schedule import ConfidenceSchedule
from engine.proposers.fixed_rule import FixedPlanner, FixedRule
from engine.proposers.lookup import LookupProposer
from engine.proposers.planner import PlannerByLoad
from engine.proposers.shared_answers import SharedAnswers
from engine.scheduler.proposals import ProposalPlanner
from kv_pool import AttentionBackend, KVPool

logger = logging.getLogger(__name__)

# Relative to the largest magnitude: rounding in another order, or of rows to bfloat16 where the
# CPU multiplies bfloat16 pairs.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.int8: 1e-4}


@dataclass(frozen=True, slots=True)
class DraftPath:
    """Names what runs draft passes, and why nothing faster does."""

    kernel: BlockKernel | None  # None: PyTorch runs all passes
    reason: str | None  # why kernel is None
    chain_reason: str | None = None  # why PyTorch picks the tokens, kernel or not

    @property
    def name(self) -> str:
        return "native" if self.kernel is not None else "torch"


def make_budget(
    config: EngineConfig, draft: LoadedDraft | None, planner: ProposalPlanner
) -> VerifyBudget:
    """Make what confidences cut. Raises LoadError if it needs a confidence head and has none."""
    is_scheduled = isinstance(planner, PlannerByLoad) and planner.schedules_confidence
    threshold = config.confidence_threshold
    if draft is None or (threshold is None and not is_scheduled):
        return VerifyAll()
    scaling = (
        draft.calibration.scaling
        if draft.calibration is not None
        else Scaling.identity(draft.config.block_size)
    )
    if threshold is not None:
        _require_confidence_head(draft, "threshold")
        return ConfidenceThreshold(threshold=threshold, scaling=scaling)
    assert isinstance(planner, PlannerByLoad)
    return ConfidenceSchedule(scaling=scaling, record=planner.record_confidences)


def _require_confidence_head(draft: LoadedDraft, mode: str) -> None:
    if not draft.config.has_confidence_head:
        raise LoadError(
            f"speculative.confidence.mode: found {mode}, but the draft has no confidence head; "
            "accepted: auto, off"
        )


def make_planner(
    config: EngineConfig, draft: LoadedDraft | None, rig: CostRig, *, costs: StepCosts | None
) -> ProposalPlanner:
    """Make what decides which drafts rounds verify. costs: None measures them.

    Raises LoadError for scheduled confidences without a confidence head.
    """
    always_looks_up = config.lookup == "on"
    rule = FixedRule(
        num_draft_tokens=0
        if draft is None
        else resolve_num_draft_tokens(config, draft.config.block_size),
        lookup=_make_lookup(config),
        always_looks_up=always_looks_up,
    )
    if config.confidence_schedule == "on" and draft is not None:
        _require_confidence_head(draft, "schedule")
    proposes_nothing = draft is None and rule.lookup is None
    # In a short context there is no room to measure a window, and little to gain.
    if proposes_nothing or config.draft_budget == "always" or rig.max_len < 4 * rig.width:
        return FixedPlanner(rule)
    return PlannerByLoad(
        costs=costs or measure_costs(rig),
        rule=rule,
        always_looks_up=always_looks_up,
        schedules_confidence=config.confidence_schedule != "off"
        and draft is not None
        and draft.config.has_confidence_head,
    )


def _make_lookup(config: EngineConfig) -> LookupProposer | None:
    if config.lookup == "off":
        return None
    max_bytes = config.lookup_shared_bytes
    return LookupProposer(
        max_tokens=config.lookup_tokens,
        min_match=config.lookup_min_match,
        shared=SharedAnswers(max_bytes=max_bytes) if max_bytes else None,
    )


def choose_draft_path(
    draft: LoadedDraft | None, pool: KVPool, *, cpu_kernels: CpuKernels | None, reason: str | None
) -> DraftPath:
    """Choose the CPU kernels' pass if this draft has one and it agrees with PyTorch's.

    reason: why cpu_kernels is None.
    """
    if draft is None or cpu_kernels is None:
        return DraftPath(None, reason)

    def kernel_over(some_pool: KVPool, max_rows: int) -> CpuDraftRound:
        return CpuDraftRound(
            kernels=cpu_kernels.library,
            network=draft.network,
            pool=some_pool,
            max_rows=max_rows,
            num_threads=cpu_kernels.num_threads,
        )

    num_slots = draft.config.num_slots
    try:
        difference = difference_of(
            draft.network, lambda small: kernel_over(small, len(CONTEXTS) * num_slots)
        )
        if not difference <= _TOLERANCE[matrices_dtype(draft.network)]:  # NaN fails too
            logger.warning("draft passes by CPU kernels differ from PyTorch's by %.1e", difference)
            return DraftPath(None, "it does not agree with PyTorch")
        kernel = kernel_over(pool, DRAFT_ROWS)
    except CpuKernelsUnavailable as error:
        return DraftPath(None, str(error))
    return DraftPath(kernel, None, kernel.chain_reason)


def make_proposer(
    config: EngineConfig,
    draft: LoadedDraft | None,
    pool: KVPool,
    attention: AttentionBackend,
    *,
    cpu_kernels: CpuKernels | None,
    path: DraftPath,
    fused: ContextKernel | None,
) -> Proposer:
    """Connect the draft to the pool. `fused` writes context where no CPU kernel does.

    Raises LoadError when the config demands the stacked writer and it is not possible.
    """
    if draft is None:
        return NoDraft()
    linear = cpu_kernels.linear if cpu_kernels is not None else widening_linear
    try:
        return DSparkProposer(
            network=draft.network,
            pool=pool,
            attention=attention,
            context_kv=config.stacked_context_kv,
            linear=linear,
            block_kernel=path.kernel,
            context_kernel=context_kernel(cpu_kernels) or fused,
        )
    except ValueError as error:
        raise LoadError(
            f"speculative.stacked_context_kv: found on; accepted: auto, off ({error})"
        ) from error


def context_kernel(cpu_kernels: CpuKernels | None) -> ContextKernel | None:
    """Make the CPU kernel that writes context KV; PyTorch writes what the kernel declines."""
    if cpu_kernels is None:
        return None
    return CpuContextWriter(
        kernels=cpu_kernels.library,
        linear=cpu_kernels.linear,
        max_rows=LINEAR_ROWS,
        num_threads=cpu_kernels.num_threads,
    )
