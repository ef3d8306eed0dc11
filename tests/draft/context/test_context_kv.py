"""The context writer: its numbers, its path, and the reason for the path."""

import logging
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from draft import (
    ContextKVMode,
    ContextKVWriter,
    DSparkNetwork,
)
from draft.network.rotary import RotaryTable
from tests.support.draft.context_writes import (
    TOLERANCE,
    UNWRITTEN_KEY,
    random_tokens,
    write_tokens,
    written_kv,
)
from tests.support.draft.naive import naive_context
from tests.support.draft.tiny import CPU, new_pool, random_network, tiny_config


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 64])
def test_the_stacked_path_gives_the_numbers_of_the_per_layer_path(
    num_tokens: int, bias: bool, dtype: torch.dtype
) -> None:
    network = random_network(tiny_config(attention_bias=bias)).to(dtype)
    stacked = written_kv(network, "on", num_tokens=num_tokens)
    per_layer = written_kv(network, "off", num_tokens=num_tokens)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(stacked, per_layer, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("bias", [False, True])
def test_both_paths_give_the_numbers_of_the_formula(bias: bool, mode: ContextKVMode) -> None:
    network = random_network(tiny_config(attention_bias=bias))
    keys, values = written_kv(network, mode, num_tokens=33)
    aux_hidden, positions, _ = random_tokens(network.config, 33)
    expected = naive_context(network, aux_hidden, positions)
    torch.testing.assert_close((keys.double(), values.double()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["on", "off"])
def test_no_tokens_write_nothing(mode: ContextKVMode) -> None:
    pool = write_tokens(random_network(), mode, num_tokens=0)
    assert (pool.draft_keys == UNWRITTEN_KEY).all()


class _ForeignTensor(nn.Parameter):
    """Has the dtype and the slicing of float32, as quantised tensors do."""


def quantised(network: DSparkNetwork) -> None:
    projection = network.attentions[1].v_proj
    projection.weight = _ForeignTensor(projection.weight.detach(), requires_grad=False)


def integers(network: DSparkNetwork) -> None:
    projection = network.attentions[0].k_proj
    projection.weight = nn.Parameter(torch.zeros(16, 32, dtype=torch.int8), requires_grad=False)


class _Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.weight = inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


def wrapped(network: DSparkNetwork) -> None:
    network.attentions[2].k_proj = _Wrapped(network.attentions[2].k_proj)


def hooked(network: DSparkNetwork) -> None:
    network.attentions[0].v_proj.register_forward_hook(lambda module, args, out: out + 1)


def another_epsilon(network: DSparkNetwork) -> None:
    network.attentions[1].k_norm.eps = 1e-2


def bias_on_one_layer(network: DSparkNetwork) -> None:
    for projection in (network.attentions[1].k_proj, network.attentions[1].v_proj):
        projection.bias = nn.Parameter(torch.ones(16), requires_grad=False)


def another_rope(network: DSparkNetwork) -> None:
    network.attentions[1].rotary = RotaryTable(
        head_dim=8, theta=500.0, num_positions=68, device=CPU
    )


def another_norm(network: DSparkNetwork) -> None:
    network.attentions[1].k_norm = nn.LayerNorm(8)


def shared(network: DSparkNetwork) -> None:
    network.attentions[1].k_proj.weight = network.attentions[0].k_proj.weight


OBSTACLES = {
    quantised: "layers.1.self_attn.v_proj has a quantised weight (_ForeignTensor)",
    integers: "layers.0.self_attn.k_proj has a quantised weight (torch.int8)",
    wrapped: "layers.2.self_attn.k_proj is a _Wrapped, not a plain linear layer",
    hooked: "layers.0.self_attn.v_proj has hooks, which a stacked product would skip",
    another_norm: "layers.1.self_attn.k_norm is not a plain norm",
    another_epsilon: "the epsilon of k_norm differs between layers",
    bias_on_one_layer: "only some of the projections have a bias",
    another_rope: "RoPE parameters differ between layers",
    shared: "two layers share a parameter",
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("when", ["at start", "later"])
def test_an_obstacle_makes_writes_per_layer_and_is_reported(
    obstacle: object, when: Literal["at start", "later"]
) -> None:
    assert callable(obstacle)
    network = random_network()
    pool = new_pool(network.config)
    if when == "at start":
        obstacle(network)
    writer = ContextKVWriter(network=network, pool=pool, mode="auto")
    if when == "later":
        assert (writer.path, writer.reason) == ("stacked", None)
        obstacle(network)
        if obstacle is not integers:  # cannot be multiplied by floats
            writer.write_context_kv(*random_tokens(network.config, 2))
        else:
            writer.set_mode("auto")
    assert (writer.path, writer.reason) == ("per_layer", OBSTACLES[obstacle])
    with pytest.raises(ValueError, match="cannot be on") as refusal:
        writer.set_mode("on")
    assert OBSTACLES[obstacle] in str(refusal.value)
    assert writer.mode == "auto"


@pytest.mark.parametrize("obstacle", [another_epsilon, bias_on_one_layer, another_rope])
def test_the_fallback_gives_the_numbers_of_the_formula(obstacle: object) -> None:
    assert callable(obstacle)
    network = random_network()
    obstacle(network)
    keys, values = written_kv(network, "auto", num_tokens=9)
    aux_hidden, positions, _ = random_tokens(network.config, 9)
    expected = naive_context(network, aux_hidden, positions)
    torch.testing.assert_close((keys.double(), values.double()), expected, rtol=1e-5, atol=1e-5)


def test_mode_on_refuses_to_start_if_layers_cannot_be_stacked() -> None:
    network = random_network()
    another_epsilon(network)
    with pytest.raises(ValueError, match="epsilon of k_norm"):
        ContextKVWriter(network=network, pool=new_pool(network.config), mode="on")


def test_mode_on_refuses_a_write_if_layers_can_no_longer_be_stacked() -> None:
    network = random_network()
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="on")
    another_epsilon(network)
    with pytest.raises(ValueError, match="epsilon of k_norm"):
        writer.write_context_kv(*random_tokens(network.config, 2))


def test_the_mode_switches_between_writes() -> None:
    network = random_network()
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
    seen = []
    for mode in ("off", "on", "auto", "off"):
        writer.set_mode(mode)  # type: ignore[arg-type]
        seen.append((writer.path, writer.reason))
    off, stacked = ("per_layer", "switched off"), ("stacked", None)
    assert seen == [off, stacked, stacked, off]


def test_writes_are_stacked_again_once_the_obstacle_is_removed() -> None:
    network = random_network()
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
    network.attentions[1].k_norm.eps = 1e-2
    writer.write_context_kv(*random_tokens(network.config, 2))
    assert writer.path == "per_layer"
    network.attentions[1].k_norm.eps = 1e-6
    writer.write_context_kv(*random_tokens(network.config, 2))
    assert (writer.path, writer.reason) == ("stacked", None)


def test_the_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    network = random_network()
    another_epsilon(network)
    with caplog.at_level(logging.INFO, logger="draft.context.context_kv"):
        writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
        for _ in range(3):
            writer.write_context_kv(*random_tokens(network.config, 2))
    assert [record.getMessage() for record in caplog.records] == [
        "context KV is written per layer: the epsilon of k_norm differs between layers"
    ]
