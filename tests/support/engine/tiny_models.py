"""Tiny random models of real architectures, and tiny random drafts that fit them."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from engine.build import Built, wire_engine
from engine.config import EngineConfig
from engine.draft_length.cost_model import StepCosts
from engine.loading.draft import LoadedDraft, load_draft
from engine.loading.target import LoadedTarget, describe_target
from engine.model_setup.device_backend import DeviceBackend
from engine.observability.step_observer import StepObserver

VOCAB = 199
HIDDEN = 48
LAYERS = 5
MASK_ID = VOCAB - 1
CPU = torch.device("cpu")

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # a multiple of any vector register, so that native kernels take part
    "max_position_embeddings": 256,
    "eos_token_id": 0,
    "bos_token_id": 1,
    "pad_token_id": 0,
    # Large enough that random weights have opinions: no near ties in greedy decoding.
    "initializer_range": 0.2,
}

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "qwen3": lambda: Qwen3Config(**_SIZES),
    "mistral_window": lambda: MistralConfig(**_SIZES, sliding_window=9),
    "gemma3": lambda: Gemma3TextConfig(
        **_SIZES,
        sliding_window=8,
        query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    ),
    "gemma4": lambda: Gemma4TextConfig(
        **_SIZES,
        sliding_window=8,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        final_logit_softcapping=20.0,
        layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"],
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
}


def tiny_model(name: str, *, seed: int = 0) -> nn.Module:
    """A float32 model with random weights; every call makes a new one with its own config."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        copy.deepcopy(CONFIGS[name]()), attn_implementation="eager"
    )
    model.eval().requires_grad_(False)
    return model  # type: ignore[no-any-return]


def tiny_target(
    name: str = "llama", *, seed: int = 0, max_len: int = 160, has_eos: bool = True
) -> LoadedTarget:
    target = describe_target(tiny_model(name, seed=seed), max_len=max_len, dtype=torch.float32)
    return target if has_eos else dataclasses.replace(target, eos_ids=frozenset())


def write_tiny_draft(folder: Path, *, block_size: int = 4, seed: int = 1, **changes: Any) -> Path:
    """A random DeepSpec checkpoint without embedding and head that fits the tiny targets."""
    rank, taps, layers, heads, kv_heads = 8, [0, 2, 3], 2, 4, 2
    dim = changes.get("head_dim", 12)  # for which there is no native code; there is for 16
    vocab = changes.get("vocab_size", VOCAB)
    config = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "block_size": block_size,
        "confidence_head_with_markov": True,
        "enable_confidence_head": True,
        "head_dim": dim,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "layer_types": ["full_attention"] * layers,
        "markov_head_type": "vanilla",
        "markov_rank": rank,
        "mask_token_id": MASK_ID,
        "max_position_embeddings": 256,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "num_target_layers": LAYERS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": None,
        "target_layer_ids": taps,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
        **changes,
    }
    generator = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> torch.Tensor:
        return 0.2 * torch.randn(*shape, generator=generator)

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(size, generator=generator)

    tensors = {
        "fc.weight": matrix(HIDDEN, len(taps) * HIDDEN),
        "hidden_norm.weight": norm(HIDDEN),
        "norm.weight": norm(HIDDEN),
        "markov_head.markov_w1.weight": matrix(vocab, rank),
        "markov_head.markov_w2.weight": matrix(vocab, rank),
    }
    if config["enable_confidence_head"]:
        tensors["confidence_head.proj.weight"] = matrix(1, HIDDEN + rank)
        tensors["confidence_head.proj.bias"] = matrix(1)
    for i in range(layers):
        at = f"layers.{i}"
        tensors |= {
            f"{at}.input_layernorm.weight": norm(HIDDEN),
            f"{at}.post_attention_layernorm.weight": norm(HIDDEN),
            f"{at}.self_attn.q_proj.weight": matrix(heads * dim, HIDDEN),
            f"{at}.self_attn.k_proj.weight": matrix(kv_heads * dim, HIDDEN),
            f"{at}.self_attn.v_proj.weight": matrix(kv_heads * dim, HIDDEN),
            f"{at}.self_attn.o_proj.weight": matrix(HIDDEN, heads * dim),
            f"{at}.self_attn.q_norm.weight": norm(dim),
            f"{at}.self_attn.k_norm.weight": norm(dim),
            f"{at}.mlp.gate_proj.weight": matrix(64, HIDDEN),
            f"{at}.mlp.up_proj.weight": matrix(64, HIDDEN),
            f"{at}.mlp.down_proj.weight": matrix(HIDDEN, 64),
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def load_tiny_draft(folder: Path, target: LoadedTarget) -> LoadedDraft:
    return load_draft(EngineConfig(target="tiny", draft=str(folder)), target, CPU)


def tiny_engine(
    *,
    target: LoadedTarget | None = None,
    draft_folder: Path | None = None,
    observer: StepObserver | None = None,
    device_backend: DeviceBackend | None = None,
    costs: StepCosts | None = None,
    tap_layers: tuple[int, ...] | None = None,
    **settings: Any,
) -> Built:
    """An engine over tiny models; settings are fields of EngineConfig."""
    target = target if target is not None else tiny_target()
    draft = load_tiny_draft(draft_folder, target) if draft_folder is not None else None
    # Measured costs differ from run to run, and drafts with them: who tests a budget brings some.
    settings = {"draft_budget": "always" if costs is None else "auto", **settings}
    settings = {"num_pages": 128, "page_size": 4, "prefill_chunk_tokens": 32, **settings}
    return wire_engine(
        EngineConfig(target="tiny", draft=str(draft_folder) if draft_folder else None, **settings),
        target=target,
        draft=draft,
        device=CPU,
        observer=observer,
        device_backend=device_backend,
        costs=costs,
        tap_layers=tap_layers,
    )
