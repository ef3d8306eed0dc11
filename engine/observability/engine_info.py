"""Describes the engine: models, chosen kernels with reasons, budgets and memory."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from draft.network.matrices import matrices_dtype
from engine.config import EngineConfig
from engine.draft_length.cost_model import Curve
from engine.loading.draft import LoadedDraft
from engine.model_setup.draft_backend import DraftPath
from engine.model_setup.model_passes import ModelPasses
from engine.model_setup.prepared_models import PreparedModels
from engine.observability.start_report import start_rows
from engine.platform.auto_settings import resolve_lookup_tokens, resolve_num_draft_tokens
from engine.proposers.planner import PlannerByLoad
from engine.proposers.survival import PRIOR_CHANCE
from engine.scheduler.proposals import ProposalPlanner

logger = logging.getLogger(__name__)


def describe(
    config: EngineConfig,
    models: PreparedModels,
    passes: ModelPasses,
    planner: ProposalPlanner,
    device: torch.device,
) -> dict[str, object]:
    """Make the details of `EngineInfo`, JSON-ready, for the start report and /server_info."""
    target, path, device_backend = models.target, models.path, models.device_backend
    return {
        "device": str(device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "torch_threads": torch.get_num_threads(),
        "attention": device_backend.attention,
        "attention_reason": device_backend.attention_reason,
        "graphs": {"tiers": list(passes.graphs.capture_sizes), "reason": passes.graphs.reason},
        "target": {
            "path": config.target,
            "type": type(target.model).__name__,
            "layers": target.num_layers,
            "quantization": config.quantization,
            "max_model_len": target.max_len,
            "self_check": {
                "tokens": path.check.num_tokens,
                "logits_difference": path.check.logits_difference,
                "taps_difference": path.check.taps_difference,
            },
            "small_steps": {"path": path.name, "reason": path.reason},
        },
        "draft": _describe_draft(config, models.draft, passes.draft_path, planner),
        "lookup": _describe_lookup(config, planner),
        "context_kv": {
            "mode": config.stacked_context_kv,
            "path": passes.proposer.context_kv_path,
            "reason": passes.proposer.context_kv_reason,
            "fused": device_backend.context_kernel is not None,
            "fused_reason": device_backend.context_reason,
        },
        "memory": dict(passes.memory.describe()),
        "max_len": passes.max_len,
    }


def _describe_draft(
    config: EngineConfig,
    draft: LoadedDraft | None,
    path: DraftPath,
    planner: ProposalPlanner,
) -> dict[str, object] | None:
    if draft is None:
        return None
    return {
        "path": config.draft,
        "matrices": str(matrices_dtype(draft.network)).removeprefix("torch."),
        "block_size": draft.config.block_size,
        "sample_from_anchor": draft.config.sample_from_anchor,
        "vocab_size": draft.config.num_outputs,
        "num_draft_tokens": resolve_num_draft_tokens(config, draft.config.block_size),
        "budget": _describe_budget(config, planner),
        "confidence_threshold": config.confidence_threshold,
        "confidence": _describe_confidence(config, draft, planner),
        "calibrated": draft.calibration is not None,
        "layers": draft.config.num_layers,
        "tap_layers": list(draft.config.tap_layers),
        "markov_rank": draft.config.markov_rank,
        "passes": {
            "path": path.name,
            "reason": path.reason,
            "chain": "torch" if path.chain_reason else path.name,
            "chain_reason": path.chain_reason,
        },
    }


def _describe_confidence(
    config: EngineConfig, draft: LoadedDraft, planner: ProposalPlanner
) -> dict[str, str | None]:
    """Describe what confidences do, and why not more where a schedule was possible."""
    if config.confidence_threshold is not None:
        return {"mode": "threshold", "reason": None}
    if isinstance(planner, PlannerByLoad) and planner.schedules_confidence:
        return {"mode": "schedule", "reason": None}
    if config.confidence_schedule == "off":
        return {"mode": "off", "reason": None}
    if not draft.config.has_confidence_head:
        return {"mode": "off", "reason": "the draft has no confidence head"}
    return {"mode": "off", "reason": "every round verifies all its draft tokens"}


def _describe_lookup(config: EngineConfig, planner: ProposalPlanner) -> dict[str, object] | None:
    if config.lookup == "off":
        return None
    return {
        "mode": config.lookup,
        "max_tokens": resolve_lookup_tokens(config),
        "min_match": config.lookup_min_match,
        "shared_bytes": config.lookup_shared_bytes,
        "budget": _describe_budget(config, planner),
    }


def _describe_budget(config: EngineConfig, budget: ProposalPlanner) -> dict[str, object]:
    if not isinstance(budget, PlannerByLoad):
        return {"mode": "always"}

    def ms(curve: Curve) -> dict[str, float]:
        points = zip(curve.sizes, curve.seconds, strict=True)
        return {str(size): round(1000 * seconds, 2) for size, seconds in points}

    return {
        "mode": "auto",
        "pass_ms_by_rows": ms(budget.costs.passes),
        "draft_ms_by_sequences": ms(budget.costs.drafts),
        "single_row_pass_ms_by_sequences": None
        if budget.costs.singles is None
        else ms(budget.costs.singles),
        "most_sequences_by_chance": {
            f"{chance:g}": budget.most_sequences(chance, max_running=config.max_running_requests)
            for chance in (PRIOR_CHANCE, 1.0)
        },
    }


def log_start(details: Mapping[str, Any]) -> None:
    """Log the start report, a line for each row."""
    for label, text in start_rows(details):
        logger.info("%s: %s", label, text)
