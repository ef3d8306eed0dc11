"""Writes tiny random Gemma 4 drafts."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draft import DSparkNetwork, TargetFacts, read_config
from tests.support.engine.tiny_models import CPU, HIDDEN, LAYERS, MASK_ID, VOCAB


def write_tiny_gemma4_draft(folder: Path, *, seed: int = 1, **changes: Any) -> Path:
    """Write a random checkpoint without embedding and head that fits the tiny targets.

    changes: fields of config.json.
    """
    config = {
        "architectures": ["Gemma4DSparkModel"],
        "model_type": "gemma4_text",
        "attention_bias": False,
        "attention_k_eq_v": True,
        "block_size": 4,
        "confidence_head_with_markov": True,
        "enable_confidence_head": True,
        "final_logit_softcapping": 20.0,
        "global_head_dim": 16,
        "head_dim": 8,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "markov_head_type": "vanilla",
        "markov_rank": 8,
        "mask_token_id": MASK_ID,
        "num_attention_heads": 4,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_target_layers": LAYERS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
                "rope_type": "proportional",
            }
        },
        "target_layer_ids": [0, 2, 3],
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    facts = TargetFacts(HIDDEN, LAYERS, config["vocab_size"])
    network = DSparkNetwork(read_config(folder, target=facts), max_positions=8, device=CPU)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: (1 if "norm" in name or name.endswith("layer_scalar") else 0)
        + 0.2 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in network.state_dict().items()
        if name not in ("embed_tokens.weight", "lm_head.weight")
    }
    save_file(tensors, folder / "model.safetensors")
    return folder
