"""One kernel from the stacked product to the pool: the same numbers, and nothing else touched.

Where there is no CUDA device, triton's interpreter runs the kernel.
"""

import pytest
import torch
from torch import Tensor

from draft import ContextKVMode, ContextKVWriter, DSparkConfig, DSparkNetwork
from draft.context.triton_context import FusedContext, store_stacked
from kv_pool import KVPool
from tests.support.draft.tiny import new_pool, random_network, tiny_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}


def tokens(config: DSparkConfig, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Taps, positions and slots, none of them in order."""
    generator = torch.Generator().manual_seed(num_tokens)
    aux_hidden = torch.randn(num_tokens, config.aux_size, generator=generator)
    positions = torch.randint(60, (num_tokens,), generator=generator)
    slots = torch.randperm(256, generator=generator)[:num_tokens]
    return aux_hidden.to(DEVICE), positions.to(DEVICE), slots.to(DEVICE)


def filled_pool(network: DSparkNetwork) -> KVPool:
    pool = new_pool(network.config, dtype=network.dtype, device=DEVICE)
    pool.draft_keys.fill_(7.0)
    pool.draft_values.fill_(9.0)
    return pool


def network_of(dtype: torch.dtype = torch.float32, **changes: object) -> DSparkNetwork:
    return random_network(tiny_config(**changes)).to(dtype).to(DEVICE)


def written(
    network: DSparkNetwork, mode: ContextKVMode, kernel: FusedContext | None, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """The whole pool after a write, untouched slots included."""
    pool = filled_pool(network)
    writer = ContextKVWriter(network=network, pool=pool, mode=mode, kernel=kernel)
    aux_hidden, positions, slots = tokens(network.config, num_tokens)
    with torch.inference_mode():
        writer.write_context_kv(aux_hidden.to(network.dtype), positions, slots)
    return pool.draft_keys, pool.draft_values


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


def test_slots_that_nobody_names_keep_what_they_hold() -> None:
    network = network_of()
    keys, values = written(network, "on", FusedContext(), 9)
    _, _, slots = tokens(network.config, 9)
    others = torch.ones(256, dtype=torch.bool, device=DEVICE)
    others[slots] = False
    assert bool((keys[:, others] == 7.0).all())
    assert bool((values[:, others] == 9.0).all())


def test_positions_that_nobody_stands_at_are_not_read() -> None:
    network = network_of()
    _, positions, slots = tokens(network.config, 6)
    factors = network.attentions[0].rotary.factors
    elsewhere = torch.ones(len(factors), dtype=torch.bool, device=DEVICE)
    elsewhere[positions] = False
    poisoned = factors.masked_fill(elsewhere[:, None, None], torch.nan)
    pool = filled_pool(network)
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
def test_without_the_stacked_form_the_kernel_is_passed_by(mode: ContextKVMode) -> None:
    network = network_of()
    if mode == "auto":
        network.attentions[1].k_norm.eps = 1e-2
    found = written(network, mode, FusedContext(), 5)
    per_layer = written(network, "off", None, 5)
    torch.testing.assert_close(found, per_layer, rtol=0, atol=0)


def test_pools_of_more_than_two_billion_numbers_are_written_where_they_should_be() -> None:
    """The last layer of such a pool; the rest is never touched, and costs nothing."""
    num_layers, num_heads, head_dim = 3, 2, 16
    num_slots = (1 << 31) // (2 * num_heads * head_dim) + 8  # layer 2 begins behind that number
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
