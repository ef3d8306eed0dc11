"""Writes in static shapes store only the committed rows."""

import pytest
import torch
from torch import Tensor

from draft import ContextKVMode, ContextKVWriter
from tests.support.draft.context_writes import filled_pool
from tests.support.draft.tiny import random_network, tiny_config

CONFIG = tiny_config()
WIDTH = CONFIG.block_size + 1


def window(num_requests: int) -> tuple[Tensor, Tensor, Tensor]:
    """Taps, positions and slots of a verify window for each request."""
    aux_hidden = torch.randn(num_requests, WIDTH, CONFIG.aux_size)
    positions = torch.randint(40, (num_requests, 1)) + torch.arange(WIDTH)
    slots = torch.randperm(256)[: num_requests * WIDTH].view(num_requests, WIDTH)
    return aux_hidden, positions, slots


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("commit_lens", [[1], [WIDTH], [3, 1, 5, 2], [0, 2], [2, 0], [0, 0, 1, 0]])
def test_exactly_the_committed_rows_are_written(
    commit_lens: list[int], mode: ContextKVMode
) -> None:
    network = random_network(CONFIG)
    aux_hidden, positions, slots = window(len(commit_lens))
    fixed, ragged = filled_pool(CONFIG), filled_pool(CONFIG)
    committed = torch.arange(WIDTH) < torch.tensor(commit_lens)[:, None]
    with torch.inference_mode():
        ContextKVWriter(network=network, pool=ragged, mode=mode).write_context_kv(
            aux_hidden[committed], positions[committed], slots[committed]
        )
        ContextKVWriter(network=network, pool=fixed, mode=mode).write_committed_kv(
            aux_hidden, positions, slots, torch.tensor(commit_lens)
        )
    torch.testing.assert_close(fixed.draft_keys, ragged.draft_keys, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fixed.draft_values, ragged.draft_values, rtol=1e-5, atol=1e-5)


def test_the_slots_of_other_rows_are_not_read() -> None:
    network = random_network(CONFIG)
    aux_hidden, positions, slots = window(2)
    commit_lens = torch.tensor([2, 3])
    clean, poisoned = filled_pool(CONFIG), filled_pool(CONFIG)
    for pool, other in ((clean, 0), (poisoned, 10**9)):
        rows = torch.arange(WIDTH) < commit_lens[:, None]
        writer = ContextKVWriter(network=network, pool=pool, mode="on")
        writer.write_committed_kv(aux_hidden, positions, slots.where(rows, other), commit_lens)
    assert torch.equal(clean.draft_keys, poisoned.draft_keys)
