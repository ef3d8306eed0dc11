"""What the engine says about itself, at start and to /server_info."""

import logging

import torch

from draft import Proposer
from engine.config import EngineConfig
from engine.draft_loading import LoadedDraft
from engine.memory import MemoryPlan
from engine.resolve import resolve_num_draft_tokens
from engine.self_check import SelfCheck
from engine.target_loading import LoadedTarget

logger = logging.getLogger(__name__)


def describe(
    config: EngineConfig,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    proposer: Proposer,
    attention_name: str,
    memory: MemoryPlan,
    check: SelfCheck,
    device: torch.device,
) -> dict[str, object]:
    return {
        "device": str(device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "torch_threads": torch.get_num_threads(),
        "attention": attention_name,
        "target": {
            "path": config.target,
            "type": type(target.model).__name__,
            "layers": target.num_layers,
            "max_model_len": target.max_len,
            "self_check": {
                "tokens": check.num_tokens,
                "logits_difference": check.logits_difference,
                "taps_difference": check.taps_difference,
            },
        },
        "draft": {
            "path": config.draft,
            "block_size": draft.config.block_size,
            "num_draft_tokens": resolve_num_draft_tokens(config, draft.config.block_size),
            "layers": draft.config.num_layers,
            "tap_layers": list(draft.config.tap_layers),
            "markov_rank": draft.config.markov_rank,
        }
        if draft is not None
        else None,
        "context_kv": {
            "mode": config.stacked_context_kv,
            "path": proposer.context_kv_path,
            "reason": proposer.context_kv_reason,
        },
        "memory": dict(memory.describe()),
    }


def log_start(details: dict[str, object]) -> None:
    for name, value in details.items():
        logger.info("%s: %s", name, value)
