"""The kernels read page tables: no work of the host grows with the context."""

import tracemalloc
from array import array
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.cpu_kernels.decoder import CpuDecoder
from engine.cpu_kernels.draft_round import CpuDraftRound
from engine.cpu_kernels.page_tables import PageTablePointers
from engine.runner.batch import batch_of_rows
from kv_pool import KVLayout, KVPool, KVShape, PageTable
from tests.support.draft.tiny import block_request, new_pool, random_network, tiny_config
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.tiny_models import CPU, LAYERS, VOCAB, tiny_target

PAGE_SIZE = 16
SHORT, LONG = 80, 8000  # tokens of context
POINTER = 8  # bytes

PassOver = Callable[[int], Callable[[], object]]  # by length of the context


def _decoder_pass() -> PassOver:
    layers = (KVShape(2, 16, 16, torch.float32),) * LAYERS
    decoder = CpuDecoder(
        kernels=kernels_or_skip(),
        model=tiny_target("llama").model,
        pool=KVPool(KVLayout(PAGE_SIZE, CPU, target=layers), num_pages=LONG // PAGE_SIZE),
        tap_layers=(),
        max_len=LONG,
        max_rows=8,
        num_threads=1,
    )
    ids, pages = torch.randint(0, VOCAB, (LONG,)), range(LONG // PAGE_SIZE)

    def over(length: int) -> Callable[[], object]:
        batch = batch_of_rows([(ids, pages, length - 6, length)], page_size=PAGE_SIZE)
        batch = replace(batch, page_tables=(array("i", pages),))
        return lambda: decoder.run(batch)

    return over


def _draft_pass() -> PassOver:
    network = random_network(tiny_config(head_dim=16), max_positions=LONG + 64)
    kernel = CpuDraftRound(
        kernels=kernels_or_skip(),
        network=network,
        pool=new_pool(network.config, page_size=PAGE_SIZE, num_slots=LONG + 64),
        max_rows=8,
        num_threads=1,
    )
    table, num_slots = PageTable(PAGE_SIZE, range(LONG // PAGE_SIZE + 4)), network.config.num_slots

    def over(length: int) -> Callable[[], object]:
        request = block_request([1], [length], [table], num_slots=num_slots)
        return lambda: kernel.run(request)

    return over


def _traced_bytes(run: Callable[[], object]) -> int:
    """The most memory of Python and NumPy that a call holds."""
    run()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make_pass", [_decoder_pass, _draft_pass])
@torch.inference_mode()
def test_a_long_context_takes_no_more_memory_of_the_host_than_a_short_one(
    make_pass: Callable[[], PassOver],
) -> None:
    with torch.inference_mode(False):
        pass_over = make_pass()
    assert _traced_bytes(pass_over(LONG)) < _traced_bytes(pass_over(SHORT)) + 100 * POINTER


def test_a_table_with_too_few_pages_is_refused() -> None:
    with pytest.raises(AssertionError, match="2 pages for 9 keys"):
        PageTablePointers([[0, 1]], np.array([9]), page_size=4)
