"""The fused context kernel stores the stacked numbers and changes no other slot.

Where there is no CUDA device, triton's interpreter runs the kernel.
"""

import pytest
import torch
from torch import Tensor

from draft import ContextKVMode, DecoderVariant, DSparkNetwork
from draft.config import ValueKind
from draft.context.triton_context import FusedContext, store_stacked
from tests.support.draft.context_writes import (
    TOLERANCE,
    UNWRITTEN_KEY,
    UNWRITTEN_VALUE,
    filled_pool,
    random_tokens,
    write_tokens,
)
from tests.support.draft.tiny import random_network, tiny_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def written(
    network: DSparkNetwork, mode: ContextKVMode, kernel: FusedContext | None, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Return keys and values of the whole pool after a write, unwritten slots included."""
    pool = write_tokens(network, mode, num_tokens=num_tokens, kernel=kernel, device=DEVICE)
    return pool.draft_keys, pool.draft_values


def network_of(dtype: torch.dtype = torch.float32, **changes: object) -> DSparkNetwork:
    return random_network(tiny_config(**changes)).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 7, 33])
def test_the_kernel_gives_the_numbers_of_the_per_layer_path(
    num_tokens: int, bias: bool, dtype: torch.dtype
) -> None:
    network = network_of(dtype, attention_bias=bias)
    fused = written(network, "on", FusedContext(), num_tokens)
    per_layer = written(network, "off", None, num_tokens)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(fused, per_layer, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 8), (3, 20), (4, 64), (2, 128)])
def test_heads_of_any_number_and_width(num_kv_heads: int, head_dim: int) -> None:
    network = network_of(num_heads=2 * num_kv_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    fused = written(network, "on", FusedContext(), 5)
    stacked = written(network, "on", None, 5)
    torch.testing.assert_close(fused, stacked, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("values", ["normed_keys", "normed_projection"])
def test_normed_values_are_the_numbers_of_the_per_layer_path(
    values: ValueKind, dtype: torch.dtype
) -> None:
    network = network_of(dtype, variant=DecoderVariant(values=values))
    fused = written(network, "on", FusedContext(), 7)
    per_layer = written(network, "off", None, 7)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(fused, per_layer, rtol=tolerance, atol=tolerance)


def test_other_slots_do_not_change() -> None:
    network = network_of()
    keys, values = written(network, "on", FusedContext(), 9)
    _, _, slots = random_tokens(network.config, 9, device=DEVICE)
    others = torch.ones(256, dtype=torch.bool, device=DEVICE)
    others[slots] = False
    assert bool((keys[:, others] == UNWRITTEN_KEY).all())
    assert bool((values[:, others] == UNWRITTEN_VALUE).all())


def test_factors_of_other_positions_are_not_read() -> None:
    network = network_of()
    _, positions, slots = random_tokens(network.config, 6, device=DEVICE)
    factors = network.attentions[0].rotary.factors
    elsewhere = torch.ones(len(factors), dtype=torch.bool, device=DEVICE)
    elsewhere[positions] = False
    poisoned = factors.masked_fill(elsewhere[:, None, None], torch.nan)
    pool = filled_pool(network.config, device=DEVICE)
    row = 2 * pool.draft_keys[:, 0].numel()
    store_stacked(
        torch.randn(6, row, generator=torch.Generator().manual_seed(0)).to(DEVICE),
        positions,
        slots,
        norm=torch.ones(3, 1, 8, device=DEVICE),
        eps=1e-6,
        factors=poisoned,
        keys=pool.draft_keys,
        values=pool.draft_values,
    )
    assert bool(pool.draft_keys.isfinite().all())


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_per_layer_writes_do_not_use_the_kernel(mode: ContextKVMode) -> None:
    network = network_of()
    if mode == "auto":
        network.attentions[1].k_norm.eps = 1e-2
    found = written(network, mode, FusedContext(), 5)
    per_layer = written(network, "off", None, 5)
    torch.testing.assert_close(found, per_layer, rtol=0, atol=0)


def test_pools_of_more_than_two_billion_numbers_are_written_where_they_should_be() -> None:
    """Only two layers are touched, so most of the memory is never allocated."""
    num_layers, num_heads, head_dim = 3, 2, 16
    num_slots = (1 << 31) // (2 * num_heads * head_dim) + 8  # layer 2 starts after that number
    shape = (num_layers, num_slots, num_heads, head_dim)
    keys, values = (torch.empty(shape, dtype=torch.float16, device=DEVICE) for _ in range(2))
    product = torch.randn(2, 2 * num_layers * num_heads * head_dim, device=DEVICE).half()
    slots = torch.tensor([num_slots - 1, 3], device=DEVICE)
    store_stacked(
        product,
        torch.zeros(2, dtype=torch.long, device=DEVICE),
        slots,
        norm=torch.ones(num_layers, 1, head_dim, device=DEVICE),
        eps=1e-6,
        factors=torch.tensor([1.0, 0.0], device=DEVICE)[None, :, None]
        .expand(1, 2, head_dim)
        .clone(),
        keys=keys,
        values=values,
    )
    rows = product.view(2, num_layers, 2, num_heads, head_dim)
    normed = torch.nn.functional.rms_norm(rows[:, :, 0].float(), (head_dim,), eps=1e-6)
    for layer in (0, 2):
        assert torch.equal(values[layer, slots], rows[:, layer, 1])
        torch.testing.assert_close(
            keys[layer, slots].float(), normed[:, layer], atol=5e-3, rtol=5e-3
        )
