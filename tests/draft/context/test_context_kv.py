"""Context keys and values: what is written, by which path, and why."""

import logging
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from draft import (
    ContextKVMode,
    ContextKVWriter,
    DSparkConfig,
    DSparkNetwork,
    LayerConfig,
)
from draft.network.rotary import RotaryTable
from kv_pool import KVPool
from tests.support.draft.naive import naive_context
from tests.support.draft.tiny import CPU, new_pool, random_network, tiny_config

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}


def written(
    network: DSparkNetwork, mode: ContextKVMode, *, num_tokens: int, pool: KVPool | None = None
) -> tuple[Tensor, Tensor]:
    """Keys and values [L, N, H, D] that a writer puts in the pool for some tokens."""
    pool = pool or new_pool(network.config, dtype=network.dtype)
    writer = ContextKVWriter(network=network, pool=pool, mode=mode)
    aux_hidden, positions, slots = tokens(network.config, num_tokens)
    with torch.inference_mode():
        writer.write_context_kv(aux_hidden.to(network.dtype), positions, slots)
    return pool.draft_keys[:, slots], pool.draft_values[:, slots]


def tokens(config: DSparkConfig, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Taps, positions and slots, none of them in order."""
    generator = torch.Generator().manual_seed(num_tokens)
    aux_hidden = torch.randn(num_tokens, config.aux_size, generator=generator)
    positions = torch.randint(64, (num_tokens,), generator=generator)
    slots = torch.randperm(256, generator=generator)[:num_tokens]
    return aux_hidden, positions, slots


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 64])
def test_the_stacked_path_gives_the_numbers_of_the_per_layer_path(
    num_tokens: int, bias: bool, dtype: torch.dtype
) -> None:
    network = random_network(tiny_config(attention_bias=bias)).to(dtype)
    stacked = written(network, "on", num_tokens=num_tokens)
    per_layer = written(network, "off", num_tokens=num_tokens)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(stacked, per_layer, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("bias", [False, True])
def test_both_paths_give_the_numbers_of_the_formula(bias: bool, mode: ContextKVMode) -> None:
    network = random_network(tiny_config(attention_bias=bias))
    keys, values = written(network, mode, num_tokens=33)
    aux_hidden, positions, _ = tokens(network.config, 33)
    expected = naive_context(network, aux_hidden, positions)
    torch.testing.assert_close((keys.double(), values.double()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["on", "off"])
def test_no_tokens_write_nothing(mode: ContextKVMode) -> None:
    pool = new_pool(tiny_config())
    written(random_network(), mode, num_tokens=0, pool=pool)
    assert not pool.draft_keys.any()


class _CountingPool(KVPool):
    """Counts the stores into it."""

    stores: list[str]

    def write_draft(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        self.stores.append("all layers")
        super().write_draft(slots, keys, values)

    def write_draft_layer(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        self.stores.append(f"layer {layer}")
        super().write_draft_layer(layer, slots, keys, values)


@pytest.mark.parametrize(
    ("mode", "stores"), [("on", ["all layers"]), ("off", ["layer 0", "layer 1", "layer 2"])]
)
def test_the_stacked_path_needs_one_store_for_all_layers(
    mode: ContextKVMode, stores: list[str]
) -> None:
    pool = new_pool(tiny_config(), kind=_CountingPool)
    assert isinstance(pool, _CountingPool)
    pool.stores = []
    written(random_network(), mode, num_tokens=3, pool=pool)
    assert pool.stores == stores


class _ForeignTensor(nn.Parameter):
    """Says that it is float32 and slices like it, as quantised tensors do."""


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
    hooked: "layers.0.self_attn.v_proj has hooks, which a stacked product would pass by",
    another_norm: "layers.1.self_attn.k_norm is not a plain norm",
    another_epsilon: "the epsilon of k_norm differs between layers",
    bias_on_one_layer: "only some of the projections have a bias",
    another_rope: "RoPE parameters differ between layers",
    shared: "two layers share a parameter",
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("when", ["at start", "later"])
def test_an_obstacle_falls_back_and_says_why(
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
        if obstacle is not integers:  # which no product of floats takes: only the reason counts
            writer.write_context_kv(*tokens(network.config, 2))
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
    keys, values = written(network, "auto", num_tokens=9)
    aux_hidden, positions, _ = tokens(network.config, 9)
    expected = naive_context(network, aux_hidden, positions)
    torch.testing.assert_close((keys.double(), values.double()), expected, rtol=1e-5, atol=1e-5)


def test_layers_of_two_ropes_in_the_checkpoint_fall_back() -> None:
    layers = (LayerConfig(1e4), LayerConfig(1e6), LayerConfig(1e4))
    network = random_network(tiny_config(layers=layers))
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
    assert writer.reason == "RoPE parameters differ between layers"


def test_on_refuses_to_start_where_it_cannot_hold() -> None:
    network = random_network()
    another_epsilon(network)
    with pytest.raises(ValueError, match="epsilon of k_norm"):
        ContextKVWriter(network=network, pool=new_pool(network.config), mode="on")


def test_on_refuses_to_go_on_when_it_no_longer_holds() -> None:
    network = random_network()
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="on")
    another_epsilon(network)
    with pytest.raises(ValueError, match="epsilon of k_norm"):
        writer.write_context_kv(*tokens(network.config, 2))


def test_the_mode_switches_between_writes() -> None:
    network = random_network()
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
    seen = []
    for mode in ("off", "on", "auto", "off"):
        writer.set_mode(mode)  # type: ignore[arg-type]
        seen.append((writer.path, writer.reason))
    off, stacked = ("per_layer", "switched off"), ("stacked", None)
    assert seen == [off, stacked, stacked, off]


def test_when_the_obstacle_is_gone_the_stacked_path_is_back() -> None:
    network = random_network()
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
    network.attentions[1].k_norm.eps = 1e-2
    writer.write_context_kv(*tokens(network.config, 2))
    assert writer.path == "per_layer"
    network.attentions[1].k_norm.eps = 1e-6
    writer.write_context_kv(*tokens(network.config, 2))
    assert (writer.path, writer.reason) == ("stacked", None)


def test_the_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    network = random_network()
    another_epsilon(network)
    with caplog.at_level(logging.INFO, logger="draft.context.context_kv"):
        writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
        for _ in range(3):
            writer.write_context_kv(*tokens(network.config, 2))
    assert [record.getMessage() for record in caplog.records] == [
        "context keys and values go layer by layer: the epsilon of k_norm differs between layers"
    ]
