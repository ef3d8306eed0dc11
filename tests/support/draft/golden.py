"""Reference numbers of the original implementation; tests/golden/README.md says what they are."""

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
    """One block, and the tokens that became context just before it."""

    start: int  # position of the first of those tokens
    anchor: int  # position of the anchor
    tensors: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


def facts_of(folder: Path) -> TargetFacts:
    """The target that a checkpoint was made for."""
    config = json.loads((folder / "config.json").read_text())
    return TargetFacts(
        hidden_size=config["hidden_size"],
        num_layers=config["num_target_layers"],
        vocab_size=config["vocab_size"],
    )


def load_golden(
    name: str, *, dtype: torch.dtype = torch.float32
) -> tuple[DSparkConfig, DSparkNetwork]:
    """The checkpoint, as if its own copies of embedding and head were the target's."""
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


def assert_golden(found: Tensor, golden: Tensor) -> None:
    """1e-5 of the largest magnitude, which is what the reference promises in float32."""
    assert found.shape == golden.shape
    worst = (found - golden).abs().max() / golden.abs().max()
    assert worst <= 1e-5, f"off by {worst:.2e} of the largest magnitude"
