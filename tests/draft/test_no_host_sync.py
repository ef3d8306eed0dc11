"""A draft round never waits for the device: it runs on meta tensors, which have no values.

Reading a value, or a shape that depends on one, raises an error on the meta device.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draft import (
    BlockRequest,
    BlockSampling,
    ContextKVMode,
    ContextKVWriter,
    DSparkProposer,
    LayerConfig,
)
from kv_pool import ReferenceAttention
from tests.support.draft.tiny import new_pool, random_network, tiny_config

META = torch.device("meta")

READING: list[Callable[[Tensor], object]] = [
    lambda x: x.sum().item(),
    lambda x: x.tolist(),
    lambda x: x[x > 0],
    lambda x: x.nonzero(),
    lambda x: bool(x.sum() > 0),
]


@pytest.mark.parametrize("reading", READING)
def test_reading_a_value_raises_on_the_meta_device(reading: Callable[[Tensor], object]) -> None:
    with torch.inference_mode(), pytest.raises((RuntimeError, NotImplementedError)):
        reading(torch.arange(3, device=META))


def meta_proposer(*, mode: ContextKVMode = "auto", kind: str = "vanilla") -> DSparkProposer:
    config = tiny_config(markov_kind=kind)
    return DSparkProposer(
        network=random_network(config).to(META),
        pool=new_pool(config, device=META),
        attention=ReferenceAttention(page_size=4, device=META),
        context_kv=mode,
    )


def integers(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=META)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_draft_pass_reads_no_value(kind: str, sampled: bool) -> None:
    uniforms = torch.rand(2, 4, dtype=torch.float64, device=META)
    sampling = BlockSampling(integers(2), torch.ones(2, device=META), uniforms)
    request = BlockRequest(
        anchor_ids=integers(3),
        anchor_positions=integers(3),
        slots=integers(3, 4),
        page_tables=[[0, 1, 2, 3], [4, 5], [6, 7]],
        context_lens=[9, 4, 1],
        sampling=sampling if sampled else None,
    )
    with torch.inference_mode():
        block = meta_proposer(kind=kind).propose(request)
    assert block.draft_ids.shape == (3, 4)
    assert (block.draft_probs is not None) == sampled


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_context_write_reads_no_value(mode: ContextKVMode) -> None:
    proposer = meta_proposer(mode=mode)
    aux_hidden = torch.zeros(2, 3, 64, device=META)
    with torch.inference_mode():
        proposer.write_context(aux_hidden[0], integers(3), integers(3))
        proposer.write_committed_context(aux_hidden, integers(2, 3), integers(2, 3), integers(2))
    assert proposer.context_kv_path == ("stacked" if mode == "on" else "per_layer")


class _Counting(TorchDispatchMode):
    """Counts all operations except views."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if not func.is_view:
            self.operations[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operations_of_a_write(num_layers: int, mode: ContextKVMode) -> Counter[str]:
    network = random_network(tiny_config(layers=(LayerConfig(1e4),) * num_layers))
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode=mode)
    with torch.inference_mode(), _Counting() as counting:
        writer.write_context_kv(torch.randn(6, 64), torch.arange(6), torch.arange(6))
    return counting.operations


def test_a_stacked_write_takes_as_many_operations_for_eight_layers_as_for_two() -> None:
    stacked = operations_of_a_write(8, "on")
    assert stacked == operations_of_a_write(2, "on")
    assert stacked["aten.index_put_.default"] == 2  # keys and values
    assert operations_of_a_write(8, "off").total() > 4 * stacked.total()
