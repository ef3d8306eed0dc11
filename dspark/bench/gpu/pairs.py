"""Makes a random target and draft of a real shape on the device."""

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3Config

from draft import DSparkConfig, DSparkNetwork, LayerConfig
from engine.loading.draft import LoadedDraft
from engine.loading.target import LoadedTarget, describe_target


@dataclass(frozen=True, slots=True)
class PairShape:
    """The shape of both models."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    taps: tuple[int, ...]
    draft_layers: int = 5
    block_size: int = 7
    markov_rank: int = 256
    initializer_range: float = 0.02


# Qwen3-8B and the draft that DeepSpec published for it.
RELEASED = PairShape(4096, 12288, 36, 32, 8, 128, 151936, taps=(1, 9, 17, 25, 33))
# Large weights avoid ties in greedy decoding. Heads are as wide as the released ones, so that
# kernels are built once.
SMALL = PairShape(
    256, 512, 6, 8, 4, 128, 1009, taps=(0, 2, 4), draft_layers=3, initializer_range=0.2
)
TINY = PairShape(
    48, 64, 4, 4, 2, 16, 199, taps=(0, 2), draft_layers=2, markov_rank=8, initializer_range=0.2
)


@dataclass(frozen=True, slots=True)
class Pair:
    target: LoadedTarget
    draft: LoadedDraft


@torch.no_grad()
def make_pair(shape: PairShape, *, dtype: torch.dtype, device: torch.device, max_len: int) -> Pair:
    """Make both models in evaluation mode; the draft uses the target's embedding and head."""
    torch.manual_seed(0)
    with torch.device(device), _default_dtype(dtype):
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(_target_config(shape, max_len)), attn_implementation="eager"
        )
    model.eval().requires_grad_(False)
    target = describe_target(model, max_len=max_len, dtype=dtype)
    target = dataclasses.replace(target, eos_ids=frozenset())  # nothing ends by chance
    return Pair(
        target, LoadedDraft(config := _draft_config(shape), _network(config, target, device))
    )


def _target_config(shape: PairShape, max_len: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=max(max_len, 4096),
        initializer_range=shape.initializer_range,
        tie_word_embeddings=False,
        pad_token_id=None,
    )


def _draft_config(shape: PairShape) -> DSparkConfig:
    return DSparkConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        rms_norm_eps=1e-6,
        attention_bias=False,
        layers=(LayerConfig(rope_theta=1e6),) * shape.draft_layers,
        block_size=shape.block_size,
        mask_token_id=shape.vocab_size - 1,
        tap_layers=shape.taps,
        markov_kind="vanilla",
        markov_rank=shape.markov_rank,
        has_confidence_head=True,
        confidence_with_markov=True,
    )


def _network(config: DSparkConfig, target: LoadedTarget, device: torch.device) -> DSparkNetwork:
    with torch.device(device), _default_dtype(target.dtype):
        network = DSparkNetwork(config, max_positions=target.max_len, device=device)
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.normal_(mean=1.0, std=0.1)
        else:
            parameter.normal_(std=0.5 * config.hidden_size**-0.5)
    network.embed_tokens.weight = _frozen(target.parts.embedding)
    network.lm_head.weight = _frozen(target.parts.lm_head)
    assert network.confidence_head is not None
    network.confidence_head.float()
    return network.requires_grad_(False).eval()


def _frozen(module: nn.Module) -> nn.Parameter:
    return nn.Parameter(module.get_parameter("weight"), requires_grad=False)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
