"""KV storage of both models: writes, shapes and size."""

from dataclasses import replace

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from kv_pool import KVLayout, KVPool, KVShape

TARGET = (KVShape(2, 8, 4, torch.float32), KVShape(1, 6, 6, torch.float32))
DRAFT = KVShape(3, 4, 5, torch.bfloat16)
LAYOUT = KVLayout(4, torch.device("cpu"), target=TARGET, draft=(DRAFT, DRAFT))


def make_pool() -> KVPool:
    return KVPool(LAYOUT, num_pages=3)


def draft_kv(num_tokens: int) -> tuple[Tensor, Tensor]:
    keys = torch.randn(2, num_tokens, DRAFT.num_kv_heads, DRAFT.key_dim)
    values = torch.randn(2, num_tokens, DRAFT.num_kv_heads, DRAFT.value_dim)
    return keys.bfloat16(), values.bfloat16()


def test_each_target_layer_reads_what_was_written_to_it() -> None:
    pool = make_pool()
    slots = torch.tensor([9, 0, 5])
    written = []
    for layer, shape in enumerate(TARGET):
        keys = torch.randn(3, shape.num_kv_heads, shape.key_dim)
        values = torch.randn(3, shape.num_kv_heads, shape.value_dim)
        pool.write_target(layer, slots, keys, values)
        written.append((keys, values))
    for layer, (keys, values) in enumerate(written):
        assert torch.equal(pool.target_keys(layer)[slots], keys)
        assert torch.equal(pool.target_values(layer)[slots], values)
        assert pool.target_keys(layer).count_nonzero() == keys.numel()


def test_one_store_for_all_draft_layers_is_a_store_for_each() -> None:
    slots = torch.tensor([9, 0, 5])
    keys, values = draft_kv(3)
    at_once, one_by_one = make_pool(), make_pool()
    at_once.write_draft(slots, keys, values)
    for layer in range(2):
        one_by_one.write_draft_layer(layer, slots, keys[layer], values[layer])
    assert torch.equal(at_once.draft_keys[:, slots], keys)
    assert torch.equal(at_once.draft_keys, one_by_one.draft_keys)
    assert torch.equal(at_once.draft_values, one_by_one.draft_values)


def test_a_draft_layer_is_a_view_that_attention_can_read() -> None:
    pool = make_pool()
    keys, values = draft_kv(1)
    pool.write_draft_layer(1, torch.tensor([4]), keys[1], values[1])
    layer = pool.draft_keys[1]
    assert layer.shape == (pool.num_slots, DRAFT.num_kv_heads, DRAFT.key_dim)
    assert layer.is_contiguous()
    assert torch.equal(layer[4], keys[1, 0])


def test_a_pool_without_a_draft_has_no_draft_storage() -> None:
    pool = KVPool(replace(LAYOUT, draft=()), num_pages=2)
    assert pool.num_draft_layers == 0
    assert pool.draft_keys.numel() == pool.draft_values.numel() == 0


def test_bytes_per_page_is_what_the_tensors_take() -> None:
    pool = make_pool()
    storages = [s for layer in (0, 1) for s in (pool.target_keys(layer), pool.target_values(layer))]
    storages += [pool.draft_keys, pool.draft_values]
    assert sum(s.nbytes for s in storages) == pool.num_pages * LAYOUT.bytes_per_page
    assert replace(LAYOUT, draft=()).bytes_per_page == 4 * (2 * 12 + 12) * 4


def test_a_wrong_shape_does_not_reach_the_storage() -> None:
    pool = make_pool()
    keys, values = draft_kv(3)
    with pytest.raises(TypeCheckError):
        pool.write_draft(torch.tensor([0, 1]), keys, values)
