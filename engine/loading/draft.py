"""Loads a draft from a folder or hub id, and refuses one that does not fit the target."""

from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download

from draft import (
    DraftLoadError,
    DSparkConfig,
    DSparkNetwork,
    TargetFacts,
    load_network,
    read_config,
)
from draft.checkpoint.calibration_file import Calibration, read_calibration
from engine.config import EngineConfig
from engine.errors import LoadError
from engine.loading.fingerprint import refuse_another_target
from engine.loading.target import LoadedTarget


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """Holds a draft network and its canonical config."""

    config: DSparkConfig
    network: DSparkNetwork
    calibration: Calibration | None = None  # of its confidences, if its folder has one


def load_draft(config: EngineConfig, target: LoadedTarget, device: torch.device) -> LoadedDraft:
    """Load a config's draft. Raises LoadError when it is missing or does not fit the target."""
    assert config.draft is not None
    folder = resolve_folder(config.draft, config.draft_revision)
    facts = TargetFacts(
        hidden_size=target.hidden_size,
        num_layers=target.num_layers,
        vocab_size=target.vocab_size,
    )
    try:
        draft_config = read_config(folder, target=facts)
        if not config.allow_other_target:
            refuse_another_target(folder, target)
        network = load_network(
            folder,
            draft_config,
            embedding=target.parts.embedding.get_parameter("weight"),
            lm_head=target.parts.lm_head.get_parameter("weight"),
            dtype=target.dtype,
            device=device,
            max_positions=target.max_len,
        )
        calibration = read_calibration(folder, block_size=draft_config.block_size)
    except DraftLoadError as error:
        raise LoadError(f"speculative.draft_model: {error}") from error
    return LoadedDraft(draft_config, network, calibration)


def resolve_folder(name: str, revision: str | None) -> Path:
    """Find a draft's folder, after a download from the hub if needed. Raises LoadError."""
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/")):
        raise LoadError(
            f"speculative.draft_model: found {name!r}; accepted: a folder that exists, or a hub id"
        )
    try:
        return Path(snapshot_download(name, revision=revision))
    except Exception as error:
        raise LoadError(
            f"speculative.draft_model: {name!r} is no folder on this machine, and the model hub "
            f"has no such model or cannot be reached ({type(error).__name__})"
        ) from error
