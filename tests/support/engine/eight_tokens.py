"""A target over eight tokens and its engine: whole distributions can be enumerated."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from engine.build import Built
from engine.loading.target import LoadedTarget, describe_target
from tests.support.engine.tiny_models import CONFIGS, HIDDEN, LAYERS, tiny_engine, write_tiny_draft

VOCAB = 8
PROMPT = (3, 1, 4, 1, 5)
BLOCK = 2


def eight_token_target() -> LoadedTarget:
    """A tiny Llama over eight tokens, so that joint distributions can be enumerated."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=64,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return describe_target(model, max_len=32, dtype=torch.float32)


def gemma4_of_eight_tokens() -> LoadedTarget:
    """A tiny Gemma 4 over eight tokens."""
    torch.manual_seed(11)
    changes = {
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    config = CONFIGS["gemma4"]()
    for name, value in changes.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return describe_target(model.eval().requires_grad_(False), max_len=32, dtype=torch.float32)


def eight_token_engine(target: LoadedTarget, folder: Path, **settings: object) -> Built:
    """An engine over `target` with a tiny random draft of BLOCK tokens, written to `folder`."""
    write_tiny_draft(folder, block_size=BLOCK, vocab_size=VOCAB, mask_token_id=VOCAB - 1)
    return tiny_engine(target=target, draft_folder=folder, max_running_requests=64, **settings)
