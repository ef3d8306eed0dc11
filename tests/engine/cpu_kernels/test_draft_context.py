"""The kernels write the same context as the layers one by one."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from draft import ContextKVWriter, DSparkConfig, DSparkNetwork, LayerConfig
from engine.cpu_kernels.draft_context import CpuContextWriter
from engine.cpu_kernels.linear import cpu_linear
from kv_pool import KVPool
from tests.support.draft.tiny import GEMMA4, new_pool, random_network, tiny_config
from tests.support.engine.cpu_kernels import kernels_or_skip

CONFIGS = {
    "plain": tiny_config(),
    "odd sizes": tiny_config(hidden_size=33, head_dim=10, num_kv_heads=3, num_heads=3),
    "biases": tiny_config(attention_bias=True),
    "one layer, wide heads": tiny_config(head_dim=64, layers=(LayerConfig(1e6, 5),)),
}
MAX_ROWS = 6  # tokens of a write in one kernel call


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class _Counting(CpuContextWriter):
    """Notes which writes it took."""

    taken: list[bool]

    def write_context_kv(self, *args: object) -> bool:
        took = super().write_context_kv(*args)  # type: ignore[arg-type]
        self.taken = [*getattr(self, "taken", []), took]
        return took


def kernel(num_threads: int = 1) -> _Counting:
    kernels = kernels_or_skip()
    return _Counting(
        kernels=kernels,
        linear=cpu_linear(kernels, max_rows=16, num_threads=num_threads),
        max_rows=MAX_ROWS,
        num_threads=num_threads,
    )


def network_of(config: DSparkConfig) -> DSparkNetwork:
    with torch.inference_mode(False):
        return random_network(config)


def rows_of(network: DSparkNetwork, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Taps, positions in disorder, slots far apart."""
    taps = torch.randn(count, network.config.aux_size)
    return taps, torch.randperm(64)[:count], torch.randperm(256)[:count]


def write(
    network: DSparkNetwork,
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    kernels: CpuContextWriter | None,
) -> KVPool:
    """A pool of -1 in which the rows are written, by the kernels or layer by layer."""
    pool = new_pool(network.config)
    pool.draft_keys.fill_(-1)
    pool.draft_values.fill_(-1)
    mode = "off" if kernels is None else "on"
    ContextKVWriter(network=network, pool=pool, mode=mode, kernel=kernels).write_context_kv(*rows)
    return pool


def assert_same(found: KVPool, expected: KVPool) -> None:
    torch.testing.assert_close(found.draft_keys, expected.draft_keys, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found.draft_values, expected.draft_values, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("count", [1, 2, MAX_ROWS, MAX_ROWS + 1, 40])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_every_slot_holds_what_the_layers_would_write(
    name: str, count: int, num_threads: int
) -> None:
    network, writer_kernel = network_of(CONFIGS[name]), kernel(num_threads)
    rows = rows_of(network, count)
    assert_same(write(network, rows, writer_kernel), write(network, rows, None))
    assert writer_kernel.taken == [True]


def test_a_token_has_the_same_bits_in_any_small_batch() -> None:
    network, writer_kernel = network_of(CONFIGS["odd sizes"]), kernel(2)
    rows = rows_of(network, MAX_ROWS)
    together = write(network, rows, writer_kernel)
    for n, slot in enumerate(rows[2].tolist()):
        alone = write(network, tuple(r[n : n + 1] for r in rows), writer_kernel)  # type: ignore[arg-type]
        assert torch.equal(alone.draft_keys[:, slot], together.draft_keys[:, slot])
        assert torch.equal(alone.draft_values[:, slot], together.draft_values[:, slot])


def test_int32_slots_and_strided_positions_are_accepted() -> None:
    network = network_of(CONFIGS["plain"])
    taps, positions, slots = rows_of(network, 4)
    strided = positions.repeat_interleave(2)[::2]
    assert_same(
        write(network, (taps, strided, slots.int()), kernel()),
        write(network, (taps, positions, slots), None),
    )


def test_changed_and_replaced_weights_are_used() -> None:
    network = network_of(CONFIGS["plain"])
    pool, rows = new_pool(network.config), rows_of(network, 3)
    writer_kernel = kernel()
    writer = ContextKVWriter(network=network, pool=pool, mode="on", kernel=writer_kernel)
    attention = network.layers[2].self_attn
    with torch.inference_mode(False):
        attention.k_proj.weight.data += 0.5
        writer.write_context_kv(*rows)
        assert_same(pool, _fresh(network, rows))
        network.fc.weight.data = network.fc.weight.data * 2
        attention.v_proj = nn.Linear(32, 16, bias=False).requires_grad_(False)
        writer.write_context_kv(*rows)
        assert_same(pool, _fresh(network, rows))
    assert writer_kernel.taken == [True, True]


@pytest.mark.parametrize("part", ["fc is hooked", "fc has a bias", "hidden_norm is foreign"])
def test_an_unsupported_network_is_declined_and_written_by_its_layers(part: str) -> None:
    network, writer_kernel = network_of(CONFIGS["plain"]), kernel()
    with torch.inference_mode(False):
        if part == "fc is hooked":
            network.fc.register_forward_hook(lambda module, args, output: output * 3)
        elif part == "fc has a bias":
            network.fc = nn.Linear(64, 32).requires_grad_(False)
        else:
            network.hidden_norm = nn.LayerNorm(32).requires_grad_(False)
    rows = rows_of(network, 3)
    assert_same(write(network, rows, writer_kernel), write(network, rows, None))
    assert writer_kernel.taken == [False]


def test_shared_and_normed_values_are_declined_and_written_all_the_same() -> None:
    network, native = network_of(GEMMA4), kernel()
    rows = rows_of(network, 3)
    assert_same(write(network, rows, native), write(network, rows, None))
    assert native.taken == [False]


@pytest.mark.parametrize(("positions", "slots"), [([68], [0]), ([-1], [0]), ([0], [256])])
def test_a_position_or_slot_out_of_range_is_an_index_error(
    positions: list[int], slots: list[int]
) -> None:
    network = network_of(CONFIGS["plain"])
    taps = torch.randn(1, network.config.aux_size)
    with pytest.raises(IndexError, match="are out of range"):
        write(network, (taps, torch.tensor(positions), torch.tensor(slots)), kernel())


def _fresh(network: DSparkNetwork, rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> KVPool:
    """What the layers write as they are now, into zeros."""
    pool = new_pool(network.config)
    ContextKVWriter(network=network, pool=pool, mode="off").write_context_kv(*rows)
    return pool
