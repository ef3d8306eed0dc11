from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from draft import DSparkNetwork, LinearFunction
from draft.context.stacked_kv import StackedKV
from dspark.bench.compare.context_write import (
    ContextWrites,
    bytes_beyond_parameters,
    measure_context_writes,
)
from engine.cpu_kernels.large_pages import move_to_large_pages
from tests.support.engine.tiny_models import CPU, load_tiny_draft, tiny_target, write_tiny_draft


@pytest.fixture
def network(tmp_path: Path) -> DSparkNetwork:
    return load_tiny_draft(write_tiny_draft(tmp_path), tiny_target()).network


def measure(
    network: DSparkNetwork, *, clock: Callable[[], float] | None = None, repetitions: int = 2
) -> ContextWrites:
    return measure_context_writes(
        network,
        max_positions=100,  # fewer than the largest write has tokens
        page_size=4,
        num_pages=160,
        device=CPU,
        repetitions=repetitions,
        **({} if clock is None else {"clock": clock}),
    )


def test_both_paths_are_timed_at_every_size_and_write_the_same(network: DSparkNetwork) -> None:
    found = measure(network)
    assert [time.num_tokens for time in found.times] == [1, 8, 64, 512]
    assert all(time.stacked_us.low > 0 and time.per_layer_us.low > 0 for time in found.times)
    assert found.key_difference < 1e-5
    assert found.value_difference < 1e-5
    assert (found.path, found.reason, found.extra_bytes) == ("stacked", None, 0)
    assert set(found.values()["context_write_us"]) == {"1", "8", "64", "512"}  # type: ignore[call-overload]


def test_a_path_that_writes_something_else_is_seen(network: DSparkNetwork) -> None:
    project = StackedKV.project

    def shifted(
        self: StackedKV, context: Tensor, positions: Tensor, *, linear: LinearFunction
    ) -> tuple[Tensor, Tensor]:
        keys, values = project(self, context, positions, linear=linear)
        return keys + 0.5, values - 0.25

    with patch.object(StackedKV, "project", shifted):
        found = measure(network)
    assert found.key_difference == pytest.approx(0.5, abs=1e-4)
    assert found.value_difference == pytest.approx(0.25, abs=1e-4)


def test_a_path_that_leaves_slots_out_is_seen(network: DSparkNetwork) -> None:
    with (
        patch("kv_pool.KVPool.write_draft", lambda self, slots, keys, values: None),
        pytest.raises(AssertionError, match="auto did not write every slot"),
    ):
        measure(network)


def test_a_draft_that_cannot_be_stacked_reports_the_reason(network: DSparkNetwork) -> None:
    network.attentions[1].k_proj.register_forward_hook(lambda module, args, output: None)
    found = measure(network)
    assert found.path == "per_layer"
    assert "layers.1.self_attn.k_proj has hooks" in str(found.reason)
    assert found.key_difference == found.value_difference == 0


def test_the_paths_are_timed_in_alternating_order(network: DSparkNetwork) -> None:
    """A machine that slows down affects both paths alike."""
    times = iter(float(i * i) for i in range(1_000_000))
    found = measure(network, clock=lambda: next(times), repetitions=51)
    for time in found.times:
        assert time.stacked_us.median == pytest.approx(time.per_layer_us.median, rel=0.05)


def test_memory_kept_twice_is_counted() -> None:
    whole = torch.nn.Linear(8, 8, bias=False)
    assert bytes_beyond_parameters(whole) == 0
    whole.weight.data = torch.zeros(16, 8)[:8]  # a view of half of a storage
    assert bytes_beyond_parameters(whole) == 8 * 8 * 4


def test_in_large_pages_only_what_lies_between_the_parameters_is_kept_twice() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    move_to_large_pages(module)
    assert bytes_beyond_parameters(module) == 0
    spare = torch.nn.Sequential(
        torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    )
    both = torch.zeros(3, 8, 8)
    spare[0].weight.data, spare[1].weight.data = both[0], both[2]
    move_to_large_pages(spare)
    assert bytes_beyond_parameters(spare) == 8 * 8 * 4
