"""Tiny models of the families whose layers kernels run, with heads and norms that matter."""

from typing import Any

import torch
from torch import nn

from engine.loading.target import LoadedTarget, describe_target
from tests.support.engine.families import FAMILIES

MAX_LEN = 100
# Differences of a family from Llama, in fields that the tiny models leave at neutral values.
CHANGES: dict[str, dict[str, Any]] = {
    "Granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
    },
    "Phi-3": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        }
    },
    "SmolLM 3": {"no_rope_layers": [1, 0, 1]},
}
DESCRIBED = [
    *("CWM", "EXAONE 4", "Gemma", "Gemma 3", "Granite", "Llama", "Ministral", "Mistral"),
    *("OLMo 2", "OLMo 3", "Phi-3", "Qwen 2", "Qwen 3", "Seed-OSS", "SmolLM 3"),
]


def described_model(name: str) -> nn.Module:
    """Build a family's tiny model with heads that kernels read, and norms that matter."""
    wide = {"hidden_size": 64, "head_dim": 16}
    model = FAMILIES[name].model(**wide, **CHANGES.get(name, {}))
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def described_target(name: str, dtype: torch.dtype = torch.float32) -> LoadedTarget:
    return describe_target(described_model(name).to(dtype), max_len=MAX_LEN, dtype=dtype)
