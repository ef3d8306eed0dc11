"""A draft that starts from its target has the weights of the target's layers, family by family."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draft import DSparkConfig
from dspark.training.config import DesignConfig
from dspark.training.model.design import design_draft
from dspark.training.model.target_layers import full_layers, last_layers
from engine.loading.target import LoadedTarget
from engine.runner.hf_attention import IMPLEMENTATION
from engine.runner.target_model import run_model
from kv_pool import AttentionOptions
from tests.support.engine.families import FAMILIES

_FUSED = ["GPT-2", "GPT-BigCode", "GPT-NeoX", "Phi-3"]
_NEIGHBOURS = ["Cohere", "Ernie 4.5", "Helium"]  # rotated in pairs of neighbours
_HEAD_NORMS = ["Apertus", "Gemma 3", "Qwen 3"]
_APART = ["Gemma", "Granite", "Llama", "Mixtral", "Nemotron", "OLMo", "OPT", "StableLM"]
_KV_HEADS = {"GPT-2": 4, "GPT-BigCode": 1, "GPT-NeoX": 4, "OPT": 4}  # the others have 2
_GATED = ["Gemma 3", "Granite", "Helium", "Llama", "OLMo 2", "Phi-3", "Qwen 3"]


class Recorder:
    """Attention that records what each layer passes, and returns zeros."""

    def __init__(self) -> None:
        self.passed: dict[int, tuple[Tensor, Tensor, Tensor, float | None]] = {}

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions
    ) -> Tensor:
        self.passed[layer] = (query[0], keys[0], values[0], options.scale)
        return query.new_zeros(*query.shape[:2], values.shape[2])


@pytest.mark.parametrize("name", [*_FUSED, *_NEIGHBOURS, *_HEAD_NORMS, *_APART])
def test_queries_keys_and_values_are_those_of_the_targets_last_layer(name: str) -> None:
    target, config = _target(name)
    weights = last_layers(target, config).layers[0]
    layer = target.parts.layers[_last_full(target)]
    below = [m for m in layer.modules() if m is not layer]
    attention = next(m for m in below if getattr(m, "layer_idx", None) is not None)
    recorder = Recorder()
    with _input_of(attention) as inputs:
        zero = torch.zeros(1, dtype=torch.long)  # no rotation at position 0
        run_model(target.model, zero + 5, zero, zero, recorder)
    query, keys, values, scale = recorder.passed[_last_full(target)]
    dim = config.head_dim
    found = {
        part: (weights[f"self_attn.{part}_proj.weight"] @ inputs[0]).view(-1, dim) for part in "qkv"
    }
    if name in _HEAD_NORMS:
        for part in "qk":
            factors = weights[f"self_attn.{part}_norm.weight"]
            found[part] = F.rms_norm(found[part], (dim,), factors, 1e-6)
    if name in [*_HEAD_NORMS, "OPT"]:
        query = query * (scale or 0) * dim**0.5  # a draft scales by 1 / sqrt(head_dim)
    if name in _NEIGHBOURS:
        order = [*range(0, dim, 2), *range(1, dim, 2)]
        query, keys = query[:, order], keys[:, order]
    for mine, theirs in zip(found.values(), (query, keys, values), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", _GATED)
def test_a_gated_feed_forward_network_is_the_targets(name: str) -> None:
    target, config = _target(name)
    weights = last_layers(target, config).layers[0]
    network: Any = target.parts.layers[_last_full(target)].mlp
    act = getattr(network, "act_fn", None) or network.activation_fn
    x = torch.randn(target.hidden_size)
    gate, up, down = (weights[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    found = down @ (act(gate @ x) * (up @ x))
    torch.testing.assert_close(found, network(x[None])[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["GPT-2", "GPT-NeoX", "Nemotron", "OPT", "Starcoder 2"])
def test_layer_norms_give_their_factors_without_their_biases(name: str) -> None:
    target, config = _target(name, keeps_biases=True)
    for parameter in target.model.parameters():
        if parameter.dim() == 1:
            parameter.normal_()
    weights = last_layers(target, config)
    names = {"GPT-2": "ln_1", "OPT": "self_attn_layer_norm"}
    norm = target.parts.layers[-1].get_submodule(names.get(name, "input_layernorm"))
    x = torch.randn(target.hidden_size)
    x = x - x.mean()
    found = F.layer_norm(x, x.shape) * weights.layers[0]["input_layernorm.weight"]
    bias: Any = norm.bias
    torch.testing.assert_close(found + bias, norm(x[None])[0], atol=1e-3, rtol=1e-3)
    assert weights.final_norm is not None


@pytest.mark.parametrize("name", ["OLMo 2", "OLMo 3", "EXAONE 4"])
def test_norms_of_outputs_are_not_taken_for_norms_of_inputs(name: str) -> None:
    target, config = _target(name)
    weights = last_layers(target, config).layers[0]
    assert not any(key.endswith("layernorm.weight") for key in weights)


def test_a_single_norm_before_both_parts_of_a_layer_is_used_twice() -> None:
    target, config = _target("Cohere")
    weights = last_layers(target, config).layers[0]
    assert weights["input_layernorm.weight"].equal(weights["post_attention_layernorm.weight"])


def test_a_network_without_a_gate_or_with_experts_is_left_out() -> None:
    for name in ("GPT-2", "Nemotron", "Mixtral"):
        target, config = _target(name)
        weights = last_layers(target, config).layers[0]
        assert not any(key.startswith("mlp.") for key in weights)


def _target(name: str, *, keeps_biases: bool = False) -> tuple[LoadedTarget, DSparkConfig]:
    target = FAMILIES[name].target()
    for key, parameter in target.model.named_parameters():
        if key.endswith("bias") and not keeps_biases:
            parameter.zero_()
    target.model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    design = DesignConfig(num_taps=1, num_layers=1, num_kv_heads=_KV_HEADS.get(name))
    return target, design_draft(design, target, mask_token_id=3)


def _last_full(target: LoadedTarget) -> int:
    config: Any = target.model.config
    return full_layers(config)[-1]


@contextmanager
def _input_of(attention: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the hidden states of the only row that an attention module reads."""
    rows: list[Tensor] = []

    def collect(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        rows.append(states[0, 0])

    handle = attention.register_forward_pre_hook(collect, with_kwargs=True)
    try:
        with torch.no_grad():
            yield rows
    finally:
        handle.remove()
