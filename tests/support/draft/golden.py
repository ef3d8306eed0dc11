"""Loads golden numbers of the original implementation; see tests/golden/README.md."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from draft import DSparkConfig, DSparkNetwork, TargetFacts, load_network, read_config
from tests.support.draft.tiny import CPU
from tests.support.paths import GOLDEN

FOLDERS = sorted(path.name for path in GOLDEN.iterdir() if (path / "config.json").is_file())


@dataclass(frozen=True)
class Round:
    """Holds one block and the context tokens written just before it."""

    start: int  # position of the first of those tokens
    anchor: int  # position of the anchor
    tensors: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


def facts_of(folder: Path) -> TargetFacts:
    """Describe the target of a golden checkpoint."""
    config = json.loads((folder / "config.json").read_text())
    return TargetFacts(
        hidden_size=config["hidden_size"],
        num_layers=config["num_target_layers"],
        vocab_size=config["vocab_size"],
    )


def load_golden(
    name: str, *, dtype: torch.dtype = torch.float32
) -> tuple[DSparkConfig, DSparkNetwork]:
    """Load a checkpoint; its copies of embedding and head serve as the target's."""
    folder = GOLDEN / name
    config = read_config(folder, target=facts_of(folder))
    weights = load_file(folder / "model.safetensors")
    network = load_network(
        folder,
        config,
        embedding=weights["embed_tokens.weight"],
        lm_head=weights["lm_head.weight"],
        dtype=dtype,
        device=CPU,
        max_positions=64,
    )
    return config, network


def rounds_of(name: str) -> list[Round]:
    stored = load_file(GOLDEN / name / "golden.safetensors")
    rounds: list[Round] = []
    for index in range(2):
        prefix = f"round{index}."
        tensors = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
        anchor = int(tensors["context_length"])
        rounds.append(Round(anchor - len(tensors["target_hidden"]), anchor, tensors))
    return rounds


def assert_golden(found: Tensor, golden: Tensor, *, tolerance: float = 1e-5) -> None:
    """Check a float32 tensor to 1e-5 of its largest magnitude, the reference's tolerance."""
    assert found.shape == golden.shape
    worst = (found - golden).abs().max() / golden.abs().max()
    assert worst <= tolerance, f"off by {worst:.2e} of the largest magnitude"
