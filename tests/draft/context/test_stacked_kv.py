"""The stacked weight is the layers' storage: no change of a layer is missed."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from draft import ContextKVWriter, DSparkNetwork
from draft.network.norm import RMSNorm
from draft.network.rotary import RotaryTable
from tests.support.draft.context_writes import random_tokens, written_kv
from tests.support.draft.tiny import (
    CPU,
    GEMMA4,
    new_pool,
    parameter_bytes,
    random_network,
    tiny_config,
)

CONFIG = tiny_config(attention_bias=True)


def test_a_shared_projection_is_stored_once_and_followed_when_it_changes() -> None:
    network = random_network(GEMMA4)
    writer = ContextKVWriter(network=network, pool=new_pool(GEMMA4), mode="on")
    assert writer.path == "stacked"
    rows = GEMMA4.num_layers * GEMMA4.num_kv_heads * GEMMA4.head_dim
    stacked = network.attentions[0].k_proj.get_parameter("weight").untyped_storage()
    assert stacked.nbytes() == 4 * rows * GEMMA4.hidden_size
    before = written_kv(network, "on", num_tokens=5)
    network.attentions[1].k_proj.get_parameter("weight").data += 0.5
    after = written_kv(network, "on", num_tokens=5)
    torch.testing.assert_close(
        after, written_kv(network, "off", num_tokens=5), rtol=1e-5, atol=1e-5
    )
    for found, old in zip(after, before, strict=True):
        assert not torch.allclose(found[1], old[1])


def another() -> DSparkNetwork:
    return random_network(CONFIG, seed=1)


def data_is_added_to(network: DSparkNetwork) -> None:
    for attention in network.attentions:
        for parameter in (attention.k_proj.weight, attention.v_proj.bias, attention.k_norm.weight):
            parameter.data += 0.5


def a_parameter_is_copied_into(network: DSparkNetwork) -> None:
    source = another().attentions
    with torch.no_grad():
        for mine, theirs in zip(network.attentions, source, strict=True):
            mine.k_proj.weight.copy_(theirs.k_proj.weight)
            mine.k_norm.weight.copy_(theirs.k_norm.weight)


def a_state_dict_is_loaded(network: DSparkNetwork) -> None:
    network.load_state_dict(another().state_dict())


def a_state_dict_is_assigned(network: DSparkNetwork) -> None:
    network.load_state_dict(another().state_dict(), assign=True)


def dtypes_go_round(network: DSparkNetwork) -> None:
    network.to(torch.bfloat16).to(torch.float32)


def a_module_is_replaced(network: DSparkNetwork) -> None:
    network.attentions[1].v_proj = another().attentions[1].v_proj


def a_norm_is_replaced(network: DSparkNetwork) -> None:
    norm = RMSNorm(8, eps=CONFIG.rms_norm_eps)
    norm.weight.data += torch.arange(8)
    network.attentions[0].k_norm = norm.requires_grad_(False)


def a_parameter_is_replaced(network: DSparkNetwork) -> None:
    network.attentions[2].k_proj.weight = another().attentions[2].k_proj.weight


def data_is_replaced(network: DSparkNetwork) -> None:
    parameter = network.attentions[2].k_proj.weight
    parameter.data = parameter.data * 2


def data_is_turned_in_place(network: DSparkNetwork) -> None:
    """The same address, dtype, device and shape, read in another order."""
    weight = network.attentions[0].k_proj.weight
    rows, columns = weight.shape
    weight.data = weight.data.as_strided((rows, columns), (1, rows))


def every_rope_is_replaced(network: DSparkNetwork) -> None:
    table = RotaryTable(head_dim=8, theta=300.0, num_positions=68, device=CPU)
    for attention in network.attentions:
        attention.rotary = table


def every_epsilon_changes(network: DSparkNetwork) -> None:
    for attention in network.attentions:
        attention.k_norm.eps = 0.5


CHANGES = (
    data_is_added_to,
    a_parameter_is_copied_into,
    a_state_dict_is_loaded,
    a_state_dict_is_assigned,
    dtypes_go_round,
    a_module_is_replaced,
    a_norm_is_replaced,
    a_parameter_is_replaced,
    data_is_replaced,
    data_is_turned_in_place,
    every_rope_is_replaced,
    every_epsilon_changes,
)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_goes_stale_when(change: Callable[[DSparkNetwork], None], inference: bool) -> None:
    network = random_network(CONFIG)
    pool = new_pool(CONFIG)
    writer = ContextKVWriter(network=network, pool=pool, mode="on")
    aux_hidden, positions, slots = random_tokens(CONFIG, 7)
    with torch.inference_mode(inference):
        writer.write_context_kv(aux_hidden, positions, slots)
        before = pool.draft_keys[:, slots], pool.draft_values[:, slots]
        change(network)
        writer.write_context_kv(aux_hidden, positions, slots)
    keys, values = pool.draft_keys[:, slots], pool.draft_values[:, slots]
    assert writer.path == "stacked"
    changed = not torch.equal(before[0], keys) or not torch.equal(before[1], values)
    assert changed, "the change has no effect, so the test proves nothing"
    expected = written_kv(network, "off", num_tokens=7)
    torch.testing.assert_close((keys, values), expected, rtol=1e-5, atol=1e-5)


def test_stacking_keeps_the_layers_parameter_objects() -> None:
    network = random_network(CONFIG)
    held = dict(network.named_parameters())
    ContextKVWriter(network=network, pool=new_pool(CONFIG), mode="on")
    assert all(held[name] is parameter for name, parameter in network.named_parameters())


def test_a_network_made_in_inference_mode_is_stacked_too() -> None:
    with torch.inference_mode():
        network = random_network(CONFIG)
        expected = written_kv(network, "off", num_tokens=5)
        found = written_kv(network, "on", num_tokens=5)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_layers_are_views_and_take_no_extra_memory() -> None:
    network = random_network(CONFIG)
    before = parameter_bytes(network)
    ContextKVWriter(network=network, pool=new_pool(CONFIG), mode="on")
    assert parameter_bytes(network) == before
    weights = [p.weight for a in network.attentions for p in (a.k_proj, a.v_proj)]
    addresses = [weight.data_ptr() for weight in weights]
    step = weights[0].nbytes
    assert addresses == [addresses[0] + index * step for index in range(len(weights))]


def test_a_write_with_unchanged_layers_moves_nothing() -> None:
    network = random_network(CONFIG)
    writer = ContextKVWriter(network=network, pool=new_pool(CONFIG), mode="on")
    addresses = [parameter.data_ptr() for parameter in network.parameters()]
    for _ in range(3):
        writer.write_context_kv(*random_tokens(CONFIG, 2))
    assert [parameter.data_ptr() for parameter in network.parameters()] == addresses


def test_a_plain_linear_of_another_width_is_not_stacked() -> None:
    network = random_network(CONFIG)
    network.attentions[1].v_proj = nn.Linear(32, 8)
    writer = ContextKVWriter(network=network, pool=new_pool(CONFIG), mode="auto")
    assert writer.reason == "the shape of projections differs between layers"
