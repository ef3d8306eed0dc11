"""Triton attention equals dense attention, eagerly and in fixed shapes.

Without a CUDA device, Triton's interpreter runs the kernels.
"""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from triton.runtime import driver

from kv_pool.attention import triton_schedule
from kv_pool.attention.fixed import FixedBackend, FixedPlan
from kv_pool.attention.triton_attention import DeviceLimits, TritonAttention
from tests.support.kv_pool.oracle import Batch, Heads, Options, attend_dense, make_batch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SINKS = torch.tensor([-1.0, 0.0, 1.0, 3.0])
OPTIONS = {
    "causal": Options(),
    "not causal": Options(causal=False),
    "window": Options(window=5),
    "window, not causal": Options(window=5, causal=False),
    "softcap": Options(softcap=0.7),
    "window, softcap and sinks": Options(window=7, softcap=0.7, sinks=SINKS),
    "sinks, not causal": Options(causal=False, sinks=SINKS),
}


def backend_of(batch: Batch) -> TritonAttention:
    return TritonAttention(page_size=batch.page_size, device=DEVICE)


def attend(plan: FixedPlan, batch: Batch, options: Options) -> Tensor:
    sinks = None if options.sinks is None else options.sinks.to(DEVICE)
    return plan.attend(
        batch.query.to(DEVICE),
        batch.keys.to(DEVICE),
        batch.values.to(DEVICE),
        replace(options, sinks=sinks).scaled(0.3),
    ).cpu()


def attend_eagerly(batch: Batch, options: Options) -> Tensor:
    plan = backend_of(batch).plan(
        query_lens=batch.query_lens,
        kv_lens=batch.kv_lens,
        page_tables=batch.page_tables,
        causal=options.causal,
    )
    return attend(plan, batch, options)


def assert_same(got: Tensor, want: Tensor, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("page_size", [1, 16])
def test_it_is_dense_attention_over_ragged_batches(page_size: int, options: Options) -> None:
    batch = make_batch(
        query_lens=[1, 70, 6, 1], kv_lens=[9, 75, 6, 1], page_size=page_size, unwritten=float("nan")
    )
    assert_same(attend_eagerly(batch, options), attend_dense(batch, options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("part", [64, 7, 1])
def test_split_keys_give_the_same_result(part: int, options: Options) -> None:
    batch = make_batch(query_lens=[6, 1], kv_lens=[150, 3], page_size=4, unwritten=float("nan"))
    with patch.object(triton_schedule, "_MIN_SPLIT", part):
        found = attend_eagerly(batch, options)
    assert_same(found, attend_dense(batch, options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_fixed_plan_splits_whichever_sequence_is_long_now(options: Options) -> None:
    first = make_batch(query_lens=[2, 2, 2], kv_lens=[9, 9, 9], page_size=4)
    with patch.object(triton_schedule, "_MIN_SPLIT", 8):
        plan = backend_of(first).fixed_plan(
            num_sequences=3, query_len=2, max_pages=20, causal=options.causal
        )
        addresses = set()
        for kv_lens in ([9, 9, 9], [70, 2, 5], [3, 2, 79]):
            batch = make_batch(query_lens=[2, 2, 2], kv_lens=kv_lens, page_size=4)
            plan.update(kv_lens=batch.kv_lens, page_tables=batch.page_tables)
            assert_same(attend(plan, batch, options), attend_dense(batch, options))
            (divided,) = plan._divided.values()
            addresses.add((divided.division.items.data_ptr(), divided.division.merges.data_ptr()))
    assert len(addresses) == 1


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("shared", [14, 24, 60])
def test_tiles_of_any_device_give_the_same_result(shared: int, options: Options) -> None:
    batch = make_batch(query_lens=[1, 70, 6], kv_lens=[9, 75, 6], page_size=4)
    limits = DeviceLimits(shared_bytes=shared * 1024, multiprocessors=3)
    plan = TritonAttention(page_size=4, device=DEVICE, limits=limits).plan(
        query_lens=batch.query_lens,
        kv_lens=batch.kv_lens,
        page_tables=batch.page_tables,
        causal=options.causal,
    )
    assert_same(attend(plan, batch, options), attend_dense(batch, options))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_limits_are_those_of_the_device(kind: str) -> None:
    ada = {"max_shared_mem": 101_376, "multiprocessor_count": 128}
    utils = SimpleNamespace(get_device_properties=lambda index: {1: ada}[index])
    with patch.object(driver, "_active", SimpleNamespace(utils=utils)):
        found = DeviceLimits.of(torch.device(kind, 1 if kind == "cuda" else None))
        with patch.object(torch.cuda, "current_device", lambda: 1):
            assert DeviceLimits.of(torch.device(kind)) == found
    assert found == (DeviceLimits(101_376, 128) if kind == "cuda" else DeviceLimits(232_448, 132))


@pytest.mark.parametrize(
    "heads", [Heads(4, 4), Heads(4, 1), Heads(10, 2), Heads(9, 3), Heads(4, 2, 20, 12)]
)
def test_heads_of_any_number_and_width(heads: Heads) -> None:
    batch = make_batch(query_lens=[6, 30], kv_lens=[31, 33], page_size=4, heads=heads)
    assert_same(attend_eagerly(batch, Options()), attend_dense(batch, Options()))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_differs_by_its_rounding(dtype: torch.dtype, tolerance: float) -> None:
    batch = make_batch(query_lens=[6, 1], kv_lens=[40, 9], page_size=4, dtype=dtype)
    found = attend_eagerly(batch, Options())
    assert found.dtype == dtype
    assert_same(found, attend_dense(batch, Options()), tolerance)


@pytest.mark.parametrize("garbage", [-1, 10**9])
def test_nothing_past_a_sequence_is_read(garbage: int) -> None:
    batch = make_batch(query_lens=[6, 1], kv_lens=[30, 5], page_size=4, unwritten=float("nan"))
    want = attend_eagerly(batch, Options())
    batch.page_tables = [[*table, garbage, garbage] for table in batch.page_tables]
    assert torch.equal(attend_eagerly(batch, Options()), want)


def test_columns_past_a_sequence_are_not_read_on_the_device() -> None:
    batch = make_batch(query_lens=[6, 6], kv_lens=[30, 9], page_size=4, unwritten=float("nan"))
    plan = backend_of(batch).fixed_plan(num_sequences=2, query_len=6, max_pages=20, causal=True)
    plan.update(kv_lens=batch.kv_lens, page_tables=batch.page_tables)
    want = attend(plan, batch, Options())
    plan._pages[0, 8:] = 10**9
    plan._pages[1, 3:] = -(10**9)
    assert torch.equal(attend(plan, batch, Options()), want)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_fixed_plan_follows_its_updates_in_the_same_memory(options: Options) -> None:
    first = make_batch(query_lens=[6, 6], kv_lens=[30, 9], page_size=4)
    plan = backend_of(first).fixed_plan(
        num_sequences=2, query_len=6, max_pages=20, causal=options.causal
    )
    addresses = set()
    for kv_lens in ([30, 9], [7, 80]):
        batch = make_batch(query_lens=[6, 6], kv_lens=kv_lens, page_size=4, seed=kv_lens[0])
        plan.update(kv_lens=batch.kv_lens, page_tables=batch.page_tables)
        assert_same(attend(plan, batch, options), attend_dense(batch, options))
        addresses.add((plan._pages.data_ptr(), plan._kv_lens.data_ptr()))
    assert len(addresses) == 1


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("lens", [[30, 9, 70], [34, 12, 66], [31, 10, 68]])
def test_lengths_may_come_from_the_device_between_bounds(lens: list[int], options: Options) -> None:
    """As in a draft whose anchors the host has not read; keys past a length are NaN."""
    batch = make_batch(query_lens=[6, 6, 6], kv_lens=lens, page_size=4, unwritten=float("nan"))
    tables = [[*table, *table[-1:] * 2] for table in batch.page_tables]
    with patch.object(triton_schedule, "_MIN_SPLIT", 8):
        plan = backend_of(batch).fixed_plan(
            num_sequences=3, query_len=6, max_pages=20, causal=options.causal
        )
        plan.update(kv_lens=[6, 6, 6], page_tables=tables)
        attend(plan, batch, options)  # the tables of this kind of layer exist from now on
        plan.update(kv_lens=[34, 12, 70], least_kv_lens=[30, 9, 66], page_tables=tables)
        plan.set_kv_lens(torch.tensor(lens, device=DEVICE))
        assert_same(attend(plan, batch, options), attend_dense(batch, options))


def test_queries_need_not_be_contiguous() -> None:
    batch = make_batch(query_lens=[6, 6], kv_lens=[30, 9], page_size=4)
    want = attend_dense(batch, Options())
    batch.query = batch.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert_same(attend_eagerly(batch, Options()), want)


def test_it_is_a_backend_for_graphs() -> None:
    backend = TritonAttention(page_size=4, device=DEVICE)
    assert isinstance(backend, FixedBackend)


def test_pools_of_more_than_two_billion_numbers_are_read_where_they_should_be() -> None:
    """32-bit offsets would overflow. Most of the pool is never touched, so takes no memory."""
    batch = make_batch(query_lens=[2], kv_lens=[7], page_size=4)
    want = attend_dense(batch, Options())
    heads, dim = batch.keys.shape[1:]
    num_slots = (1 << 31) // (heads * dim) + 64
    first = (num_slots - 32) // 4  # pages after the two billionth number
    slots = slice(4 * first, 4 * first + len(batch.keys))
    for name in ("keys", "values"):
        large = torch.empty(num_slots, heads, dim, dtype=torch.float16, device=DEVICE)
        large[slots] = getattr(batch, name).to(DEVICE)
        setattr(batch, name, large)
    batch.page_tables = [[page + first for page in table] for table in batch.page_tables]
    assert_same(attend_eagerly(batch, Options()), want, 2e-3)
