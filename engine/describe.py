"""What the engine says about itself, at start and to /server_info."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from draft.matrices import matrices_dtype
from engine.acceptance_history import PRIOR_CHANCE
from engine.config import EngineConfig
from engine.draft_budget import LoadBudget
from engine.draft_building import DraftPath
from engine.draft_loading import LoadedDraft
from engine.memory import GIB, size_text
from engine.model_preparing import PreparedModels
from engine.passes import Passes
from engine.resolve import resolve_num_draft_tokens
from engine.step_costs import Curve

logger = logging.getLogger(__name__)


def describe(
    config: EngineConfig,
    models: PreparedModels,
    passes: Passes,
    draft_budget: LoadBudget | None,
    device: torch.device,
) -> dict[str, object]:
    target, path, acceleration = models.target, models.path, models.acceleration
    return {
        "device": str(device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "torch_threads": torch.get_num_threads(),
        "attention": acceleration.attention,
        "attention_reason": acceleration.attention_reason,
        "graphs": {"tiers": list(passes.graphs.tiers), "reason": passes.graphs.reason},
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
        "draft": _describe_draft(config, models.draft, passes.draft_path, draft_budget),
        "context_kv": {
            "mode": config.stacked_context_kv,
            "path": passes.proposer.context_kv_path,
            "reason": passes.proposer.context_kv_reason,
            "fused": acceleration.context_kernel is not None,
            "fused_reason": acceleration.context_reason,
        },
        "memory": dict(passes.memory.describe()),
        "max_len": passes.max_len,
    }


def _describe_draft(
    config: EngineConfig,
    draft: LoadedDraft | None,
    path: DraftPath,
    budget: LoadBudget | None,
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
        "budget": _describe_budget(config, budget),
        "confidence_threshold": config.confidence_threshold,
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


def _describe_budget(config: EngineConfig, budget: LoadBudget | None) -> dict[str, object]:
    if budget is None:
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
    """The start-up log: which paths are active and why, and what takes how much memory."""
    target, draft, memory = details["target"], details["draft"], details["memory"]
    logger.info(
        "device=%s dtype=%s torch_threads=%s attention=%s",
        *(details[name] for name in ("device", "dtype", "torch_threads", "attention")),
    )
    logger.info(
        "target: %s from %s, quantization %s, %d layers, up to %d tokens; self-check over %d "
        "tokens: logits within %.1e of the model's own",
        *(target[name] for name in ("type", "path", "quantization", "layers", "max_model_len")),
        *(target["self_check"][name] for name in ("tokens", "logits_difference")),
    )
    for name, path, why in (
        ("attention", details["attention"], details["attention_reason"]),
        ("graphs", _tiers(details["graphs"]["tiers"]), details["graphs"]["reason"]),
    ):
        logger.info("%s: %s%s", name, path, f" ({why})" if why else "")
    small = target["small_steps"]
    why = f" ({small['reason']})" if small["reason"] else ""
    logger.info("the target's steps run by: %s%s", small["path"], why)
    if draft is None:
        logger.info("draft: none; plain decoding")
    else:
        logger.info(
            "draft: %s, blocks of %d of which %d are verified (anchor and bonus not counted), "
            "%d layers, taps %s, matrices in %s",
            *(draft[name] for name in ("path", "block_size", "num_draft_tokens", "layers")),
            *(draft[name] for name in ("tap_layers", "matrices")),
        )
        _log_budget(draft["budget"])
        if draft["confidence_threshold"] is not None:
            logger.info(
                "draft tokens are verified while the block stands up to them with a chance of %g, "
                "by %s confidences",
                draft["confidence_threshold"],
                "calibrated" if draft["calibrated"] else "uncalibrated",
            )
        passes = draft["passes"]
        why = passes["reason"] or passes["chain_reason"]
        logger.info(
            "draft passes run by: %s, tokens picked by: %s%s",
            passes["path"],
            passes["chain"],
            f" ({why})" if why else "",
        )
        context_kv = details["context_kv"]
        why = f" ({context_kv['reason']})" if context_kv["reason"] else ""
        logger.info("context KV: mode=%s path=%s%s", context_kv["mode"], context_kv["path"], why)
    logger.info(
        "memory plan: %s, KV pool %s = %d pages of %d tokens = %d tokens, by %s",
        _taken(memory),
        size_text(GIB * memory["pool_gib"]),
        *(memory[name] for name in ("num_pages", "page_size", "tokens", "budget")),
    )
    logger.info("one request may have %d tokens, prompt and output together", details["max_len"])


def _taken(memory: Mapping[str, Any]) -> str:
    """Who takes memory beside the pool; what is not there, or was not measured, is left out."""
    sizes = {
        "target": memory["target_gib"],
        "draft": memory["draft_gib"],
        "largest step": memory["step_gib"],
        "graphs": memory["graphs_gib"],
    }
    return ", ".join(f"{name} {size_text(GIB * size)}" for name, size in sizes.items() if size)


def _log_budget(budget: Mapping[str, Any]) -> None:
    if budget["mode"] == "always":
        logger.info("draft budget: always; every round verifies its whole number")
        return
    logger.info(
        "draft budget: auto; a target pass takes (rows: ms) %s; a draft pass (sequences: ms) %s; "
        "%s",
        *(
            ", ".join(f"{size}: {ms:g}" for size, ms in budget[table].items())
            for table in ("pass_ms_by_rows", "draft_ms_by_sequences")
        ),
        ", ".join(
            f"at a chance of {chance} a token drafts pay for up to {most} sequences at once"
            for chance, most in budget["most_sequences_by_chance"].items()
        ),
    )


def _tiers(sizes: list[int]) -> str:
    return f"for batches of {', '.join(map(str, sizes))}" if sizes else "none"
