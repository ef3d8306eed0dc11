"""Triton kernels of TritonAttention: online softmax over pages, then combining the splits.

Method: tiled attention with a running maximum (FlashAttention, Dao et al. 2022). If there are few
tiles, their keys are split over programs (FlashDecoding). Scores and sums are float32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

from kv_pool.attention.backend import AttentionOptions

_KEYS = 64  # keys of one loop iteration
_MAX_SPLITS = 16
_ENOUGH_PROGRAMS = 264  # two for each multiprocessor of an H200
_MIN_SPLIT = 256  # keys; shorter splits cost more to combine than they gain


@dataclass(frozen=True, slots=True)
class Tiles:
    """Describes the tiles. A tile's rows are its queries times the heads of one KV head."""

    table: Int32[Tensor, "2 N"]  # sequence; first query within the sequence
    queries: int  # of one tile
    num_rows: int  # a power of two, at least queries * group


def launch(
    query: Float[Tensor, "T H D"],
    keys: Float[Tensor, "S Hkv D"],
    values: Float[Tensor, "S Hkv Dv"],
    *,
    tiles: Tiles,
    pages: Int32[Tensor, "B P"],
    kv_lens: Int32[Tensor, "B"],
    starts: Int32[Tensor, "B+1"],
    page_size: int,
    max_kv_len: int,
    causal: bool,
    options: AttentionOptions,
) -> Float[Tensor, "T H Dv"]:
    """Run the kernels; see AttentionPlan.attend. starts[b] is sequence b's first query row."""
    window, softcap, sinks = options.window, options.softcap, options.sinks
    num_queries, num_heads, key_dim = query.shape
    num_kv_heads, value_dim = values.shape[1:]
    num_tiles = tiles.table.shape[1]
    splits = num_splits(num_tiles * num_kv_heads, max_kv_len, window)
    is_whole = splits == 1 and sinks is None
    query = query if query.stride(2) == 1 else query.contiguous()
    out = query.new_empty(num_queries, num_heads, value_dim)
    # Without splits there are no partial results, and `out` takes their place.
    parts = out if is_whole else _floats(query, splits, num_queries, num_heads, value_dim)
    sums = out if is_whole else _floats(query, splits, num_queries, num_heads)
    _attend[(num_tiles, num_kv_heads, splits)](
        query,
        keys,
        values,
        parts,
        sums,
        tiles.table,
        starts,
        pages,
        kv_lens,
        query.stride(0),
        query.stride(1),
        num_queries,
        num_tiles,
        pages.shape[1],
        options.scale,
        softcap if softcap is not None else 1.0,
        window if window is not None else 0,
        splits,
        CAUSAL=causal,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        IS_WHOLE=is_whole,
        H=num_heads,
        HKV=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        QUERIES=tiles.queries,
        ROWS=tiles.num_rows,
        KEYS=_KEYS,
        PAGE=page_size,
        D=key_dim,
        DV=value_dim,
        BLOCK_D=max(16, triton.next_power_of_2(key_dim)),
        BLOCK_DV=max(16, triton.next_power_of_2(value_dim)),
        WIDE=query.device.type == "cpu",
        num_warps=4,
        num_stages=2,
    )
    if not is_whole:
        _combine[(num_queries, num_heads)](
            parts,
            sums,
            sinks if sinks is not None else sums,
            out,
            num_queries,
            splits,
            HAS_SINKS=sinks is not None,
            BLOCK_SPLITS=_MAX_SPLITS,
            H=num_heads,
            DV=value_dim,
            BLOCK_DV=triton.next_power_of_2(value_dim),
            num_warps=4,
        )
    return out


def num_splits(num_programs: int, max_kv_len: int, window: int | None) -> int:
    """Count the splits of a tile's keys: enough to occupy the device, none below _MIN_SPLIT."""
    longest = max_kv_len if window is None else min(max_kv_len, window)
    return max(1, min(_ENOUGH_PROGRAMS // num_programs, longest // _MIN_SPLIT, _MAX_SPLITS))


def _floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


# Arguments that differ from step to step must not specialize the kernel: a compilation would stall
# requests for seconds.
@triton.jit(do_not_specialize=["num_queries", "num_tiles", "max_pages", "window", "splits"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    parts,
    sums,
    tiles,
    starts,
    pages,
    kv_lens,
    query_stride,
    head_stride,
    num_queries,
    num_tiles,
    max_pages,
    scale,
    softcap,
    window,
    splits,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    H: tl.constexpr,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    WIDE: tl.constexpr,  # products in float32: the interpreter has none in bfloat16
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    sequence = tl.load(tiles + tile)
    first = tl.load(tiles + num_tiles + tile)
    start = tl.load(starts + sequence)
    query_len = tl.load(starts + sequence + 1) - start
    kv_len = tl.load(kv_lens + sequence)

    # Rows of this tile: queries first, then the heads that share the KV head.
    row = tl.arange(0, ROWS)
    nth = first + row // GROUP
    is_query = (row < QUERIES * GROUP) & (nth < query_len)
    head = kv_head * GROUP + row % GROUP
    position = kv_len - query_len + nth

    dim = tl.arange(0, BLOCK_D)
    at = (start + nth).to(tl.int64) * query_stride + head * head_stride
    q = tl.load(
        query + at[:, None] + dim[None, :],
        mask=is_query[:, None] & (dim < D)[None, :],
        other=0.0,
    )
    if WIDE:
        q = q.to(tl.float32)

    # Keys that any row of the tile attends to, and this program's part of them.
    lo = 0
    hi = kv_len
    if CAUSAL:
        hi = tl.minimum(kv_len, kv_len - query_len + first + QUERIES)
    if HAS_WINDOW:
        lo = tl.maximum(0, kv_len - query_len + first - window + 1)
    length = (hi - lo + splits - 1) // splits
    lo = lo + split * length
    hi = tl.minimum(hi, lo + length)

    dim_v = tl.arange(0, BLOCK_DV)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    for begin in range(lo, hi, KEYS):
        key = begin + tl.arange(0, KEYS)
        is_key = key < hi
        page = tl.load(pages + sequence * max_pages + key // PAGE, mask=is_key, other=0)
        slot = page.to(tl.int64) * PAGE + key % PAGE
        k = tl.load(
            keys + (slot * HKV + kv_head)[:, None] * D + dim[None, :],
            mask=is_key[:, None] & (dim < D)[None, :],
            other=0.0,
        )
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale
        if HAS_SOFTCAP:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)  # tanh
        sees = is_query[:, None] & is_key[None, :]
        if CAUSAL:
            sees = sees & (key[None, :] <= position[:, None])
        if HAS_WINDOW:
            sees = sees & (key[None, :] > position[:, None] - window)
        scores = tl.where(sees, scores, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, axis=1))
        safe = tl.where(now == float("-inf"), 0.0, now)  # rows without any key so far
        shrink = tl.exp(largest - safe)
        probs = tl.exp(scores - safe[:, None])
        v = tl.load(
            values + (slot * HKV + kv_head)[:, None] * DV + dim_v[None, :],
            mask=is_key[:, None] & (dim_v < DV)[None, :],
            other=0.0,
        )
        v = v.to(q.dtype)
        acc = acc * shrink[:, None] + tl.dot(probs.to(q.dtype), v, input_precision="ieee")
        total = total * shrink + tl.sum(probs, axis=1)
        largest = now

    some = tl.where(total > 0.0, total, 1.0)
    result = acc / some[:, None]
    to = (start + nth).to(tl.int64) * H + head
    kept = is_query[:, None] & (dim_v < DV)[None, :]
    if IS_WHOLE:
        tl.store(
            parts + to[:, None] * DV + dim_v[None, :],
            result.to(parts.dtype.element_ty),
            mask=kept,
        )
    else:
        to = to + split.to(tl.int64) * num_queries * H
        tl.store(parts + to[:, None] * DV + dim_v[None, :], result, mask=kept)
        weight = tl.where(total > 0.0, largest + tl.log(some), float("-inf"))
        tl.store(sums + to, weight, mask=is_query)


@triton.jit(do_not_specialize=["num_queries", "splits"])  # type: ignore[untyped-decorator]
def _combine(  # type: ignore[no-untyped-def]
    parts,
    sums,
    sinks,
    out,
    num_queries,
    splits,
    HAS_SINKS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    H: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Weight each split by its sum of exponentials; a sink adds one term without a value."""
    row = tl.program_id(0).to(tl.int64) * H + tl.program_id(1)
    split = tl.arange(0, BLOCK_SPLITS)
    dim = tl.arange(0, BLOCK_DV)
    at = split.to(tl.int64) * num_queries * H + row
    weight = tl.load(sums + at, mask=split < splits, other=float("-inf"))
    largest = tl.max(weight, axis=0)
    if HAS_SINKS:
        sink = tl.load(sinks + tl.program_id(1)).to(tl.float32)
        largest = tl.maximum(largest, sink)
    factor = tl.exp(weight - largest)
    total = tl.sum(factor, axis=0)
    if HAS_SINKS:
        total = total + tl.exp(sink - largest)
    part = tl.load(
        parts + at[:, None] * DV + dim[None, :],
        mask=(split < splits)[:, None] & (dim < DV)[None, :],
        other=0.0,
    )
    result = tl.sum(part * factor[:, None], axis=0) / total
    tl.store(out + row * DV + dim, result.to(out.dtype.element_ty), mask=dim < DV)
