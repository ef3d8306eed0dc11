"""Paged attention is dense attention, whatever the pages, lengths and options."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from kv_pool import ReferenceAttention
from tests.support.kv_pool.oracle import (
    Batch,
    Heads,
    Options,
    attend_dense,
    attend_paged,
    make_batch,
)

SINKS = torch.tensor([-1.0, 0.0, 1.0, 3.0])
OPTIONS = {
    "causal": Options(),
    "not causal": Options(causal=False),
    "window": Options(window=5),
    "window, not causal": Options(window=5, causal=False),
    "window of one": Options(window=1),
    "softcap": Options(softcap=0.7),
    "sinks": Options(sinks=SINKS),
    "window, softcap and sinks": Options(window=7, softcap=0.7, sinks=SINKS),
    "softcap and sinks, not causal": Options(causal=False, softcap=0.7, sinks=SINKS),
}


def ragged_batch(
    *,
    page_size: int = 4,
    heads: Heads | None = None,
    dtype: torch.dtype = torch.float32,
    unwritten: float = 0.0,
) -> Batch:
    """Decodes, verify windows, a prompt chunk and a prompt's first token, mixed."""
    return make_batch(
        query_lens=[1, 40, 6, 1, 6],
        kv_lens=[9, 43, 6, 1, 31],
        page_size=page_size,
        heads=heads,
        dtype=dtype,
        unwritten=unwritten,
    )


def assert_same(got: Tensor, want: Tensor, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_paged_attention_is_dense_attention(page_size: int, options: Options) -> None:
    batch = ragged_batch(page_size=page_size)
    assert_same(attend_paged(batch, options), attend_dense(batch, options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_each_query_head_reads_its_own_kv_head(num_kv_heads: int, options: Options) -> None:
    batch = ragged_batch(heads=Heads(4, num_kv_heads))
    assert_same(attend_paged(batch, options), attend_dense(batch, options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_values_may_be_wider_or_narrower_than_keys(options: Options) -> None:
    for value_dim in (4, 16):
        batch = ragged_batch(heads=Heads(4, 2, 8, value_dim))
        result = attend_paged(batch, options)
        assert result.shape == (54, 4, value_dim)
        assert_same(result, attend_dense(batch, options))


@settings(max_examples=60, deadline=None)
@given(
    lens=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=6),
    page_size=st.sampled_from([1, 2, 4, 16]),
    num_kv_heads=st.sampled_from([1, 2, 4]),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 45),
    softcap=st.sampled_from([None, 0.7]),
    sinks=st.sampled_from([None, SINKS]),
)
def test_any_batch_with_any_options_is_dense_attention(
    lens: list[tuple[int, int]],
    page_size: int,
    num_kv_heads: int,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> None:
    batch = make_batch(
        query_lens=[new for new, _ in lens],
        kv_lens=[new + cached for new, cached in lens],
        page_size=page_size,
        heads=Heads(4, num_kv_heads),
        unwritten=float("nan"),
    )
    options = Options(causal, window, softcap, sinks)
    assert_same(attend_paged(batch, options), attend_dense(batch, options))


@pytest.mark.parametrize("garbage", [-1, 10**9])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_nothing_past_a_sequence_is_read(options: Options, garbage: int) -> None:
    clean = ragged_batch()
    poisoned = ragged_batch(unwritten=float("nan"))
    assert poisoned.keys.isnan().any()
    poisoned.page_tables = [[*table, garbage, garbage] for table in poisoned.page_tables]
    assert torch.equal(attend_paged(poisoned, options), attend_paged(clean, options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_keys_before_every_window_are_not_read(options: Options) -> None:
    if options.window is None:
        options = Options(options.causal, 11, options.softcap, options.sinks)
    batch = make_batch(query_lens=[3, 3], kv_lens=[40, 25], page_size=1)
    want = attend_dense(batch, options)
    for table, kv_len in zip(batch.page_tables, batch.kv_lens, strict=True):
        hidden = table[: kv_len - 3 - options.window + 1]
        assert hidden
        batch.keys[hidden] = float("nan")
        batch.values[hidden] = float("nan")
    assert_same(attend_paged(batch, options), want)


@pytest.mark.parametrize("options", [o for o in OPTIONS.values() if o.causal])
@pytest.mark.parametrize("chunk_len", [1, 7, 33])
def test_a_prompt_in_chunks_is_a_prompt_at_once(chunk_len: int, options: Options) -> None:
    whole = make_batch(query_lens=[50], kv_lens=[50], page_size=4)
    chunks = []
    for start in range(0, 50, chunk_len):
        stop = min(50, start + chunk_len)
        chunk = Batch(**{**vars(whole), "query_lens": [stop - start], "kv_lens": [stop]})
        chunk.query = whole.query[start:stop]
        chunks.append(attend_paged(chunk, options))
    assert_same(torch.cat(chunks), attend_paged(whole, options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_batch_is_its_sequences_one_by_one(options: Options) -> None:
    batch = ragged_batch()
    together = attend_paged(batch, options).split(batch.query_lens)
    queries = batch.query.split(batch.query_lens)
    for b, query in enumerate(queries):
        alone = Batch(**vars(batch))
        alone.query = query
        alone.query_lens, alone.kv_lens = [batch.query_lens[b]], [batch.kv_lens[b]]
        alone.page_tables = [batch.page_tables[b]]
        assert_same(together[b], attend_paged(alone, options))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 3e-2)], ids=str
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_half_precision_stays_half_and_close(
    options: Options, dtype: torch.dtype, tolerance: float
) -> None:
    batch = ragged_batch(dtype=dtype)
    result = attend_paged(batch, options)
    assert result.dtype == dtype
    assert_same(result, attend_dense(batch, options), tolerance)


def test_one_plan_serves_layers_of_different_windows_and_heads() -> None:
    batches = [ragged_batch(heads=Heads(4, n)) for n in (1, 4)]
    for batch in batches:
        batch.page_tables = [list(table) for table in batches[0].page_tables]
    plan = ReferenceAttention(page_size=4, device=torch.device("cpu")).plan(
        query_lens=batches[0].query_lens,
        kv_lens=batches[0].kv_lens,
        page_tables=batches[0].page_tables,
        causal=True,
    )
    for window in (None, 5, None, 9):
        for batch in batches:
            got = plan.attend(
                batch.query, batch.keys, batch.values, Options(window=window).scaled(0.3)
            )
            assert_same(got, attend_dense(batch, Options(window=window)))


def test_a_query_may_be_a_transposed_view() -> None:
    batch = ragged_batch()
    want = attend_paged(batch, Options())
    batch.query = batch.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert not batch.query.is_contiguous()
    assert torch.equal(attend_paged(batch, Options()), want)


class Operations(TorchDispatchMode):
    """The names of the tensor operations that run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def operations_of_a_layer(batch: Batch, options: Options) -> list[str]:
    """What attend runs once its plan has served another layer."""
    plan = ReferenceAttention(page_size=batch.page_size, device=torch.device("cpu")).plan(
        query_lens=batch.query_lens,
        kv_lens=batch.kv_lens,
        page_tables=batch.page_tables,
        causal=options.causal,
    )

    def attend() -> None:
        plan.attend(batch.query, batch.keys, batch.values, options.scaled(0.3))

    attend()
    untouched = AssertionError("an index was built again")
    with patch.object(torch, "from_numpy", side_effect=untouched), Operations() as operations:
        attend()
    return operations.names


def test_a_decode_step_costs_the_same_operations_for_any_number_of_sequences() -> None:
    one, many = (
        operations_of_a_layer(
            make_batch(query_lens=[1] * n, kv_lens=list(range(9, 9 + n)), page_size=4), Options()
        )
        for n in (2, 16)
    )
    assert one == many
    assert sum("scaled_dot_product" in name for name in many) == 1


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_layer_neither_waits_for_the_device_nor_sends_it_anything(options: Options) -> None:
    names = operations_of_a_layer(ragged_batch(), options)
    assert "index_select" in names
    waits = {"_local_scalar_dense", "nonzero", "equal"}
    builds_a_mask = {"masked_fill_", "where", "zeros"}
    assert not (waits | builds_a_mask) & set(names)
