"""Compares the speed of a family with transformers, at one stream and without a draft.

python -m tests.support.engine.family_speed gemma3_text phi3

One thread, and seconds of its CPU: a busy machine changes the ratios little.
"""

import copy
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.loading.target import LoadedTarget, describe_target
from tests.support.engine.running import generate_alone, greedy_requests, run_all
from tests.support.engine.tiny_models import tiny_engine

_SIZES: dict[str, Any] = {
    "vocab_size": 16000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "eos_token_id": None,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_NEW_TOKENS = 16
_PROMPT = [7 + 31 * i % 15000 for i in range(32)]
_TURNS = 2


def _target(model_type: str) -> LoadedTarget:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **_SIZES)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return describe_target(model.eval().requires_grad_(False), max_len=256, dtype=torch.float32)


def compare(model_type: str) -> str:
    """Generate in turns by transformers, kernels and int8 kernels; return a line of medians."""
    target = _target(model_type)
    reference, quantised = copy.deepcopy(target), copy.deepcopy(target)
    millions = sum(p.numel() for p in target.model.parameters()) / 1e6
    arms: dict[str, Callable[[], object]] = {
        "transformers": lambda: generate_alone(reference, _PROMPT, _NEW_TOKENS)
    }
    for name, model in (("none", target), ("int8", quantised)):
        built = tiny_engine(target=model, quantization=name, num_pages=64, page_size=16)
        details: Any = built.engine.info.details["target"]
        label = f"{details['small_steps']['path']} {name}"
        arms[label] = lambda built=built: run_all(built, greedy_requests([_PROMPT], _NEW_TOKENS))
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(_TURNS + 1):
        for name, generate in arms.items():
            start = time.process_time()
            generate()
            if turn > 0:  # the first warms up
                speeds[name].append(_NEW_TOKENS / (time.process_time() - start))
    first = median(speeds["transformers"])
    found = [f"{name} {median(s):.1f} ({median(s) / first:.2f})" for name, s in speeds.items()]
    return f"{model_type} {millions:.0f} M parameters, tokens per CPU second: {', '.join(found)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for model_type in sys.argv[1:]:
        sys.stdout.write(compare(model_type) + "\n")
        sys.stdout.flush()
