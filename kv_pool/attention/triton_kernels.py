"""Triton kernels of TritonAttention: online softmax over pages, then merging split tiles.

Method: tiled attention with a running maximum (FlashAttention, Dao et al. 2022). Keys of a tile are
split over programs where it has much more work than others (FlashDecoding). Scores and sums are
float32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

from kv_pool.attention.backend import AttentionOptions
from kv_pool.attention.triton_schedule import TileShape

_WARPS = 4


@dataclass(frozen=True, slots=True)
class Division:
    """The programs of one kind of layer; see triton_schedule."""

    shape: TileShape
    tiles: Int32[Tensor, "2 N"]
    items: Int32[Tensor, "C 4"]
    merges: Int32[Tensor, "M 3"]
    num_parts: int  # partial results for each KV head


def launch(
    query: Float[Tensor, "T H D"],
    keys: Float[Tensor, "S Hkv D"],
    values: Float[Tensor, "S Hkv Dv"],
    *,
    division: Division,
    pages: Int32[Tensor, "B P"],
    kv_lens: Int32[Tensor, "B"],
    starts: Int32[Tensor, "B+1"],
    page_size: int,
    causal: bool,
    options: AttentionOptions,
) -> Float[Tensor, "T H Dv"]:
    """Run the kernels; see AttentionPlan.attend. starts[b] is sequence b's first query row."""
    window, softcap, sinks = options.window, options.softcap, options.sinks
    num_queries, num_heads, key_dim = query.shape
    num_kv_heads, value_dim = values.shape[1:]
    shape, num_merges = division.shape, len(division.merges)
    query = query if query.stride(2) == 1 else query.contiguous()
    out = query.new_empty(num_queries, num_heads, value_dim)
    # Without split tiles there are no parts, and one unread number takes their place.
    rows = (division.num_parts * num_kv_heads, shape.rows) if num_merges else (1, 1)
    parts = _floats(query, *rows, value_dim)
    sums = _floats(query, *rows)
    tile = {
        "GROUP": num_heads // num_kv_heads,
        "QUERIES": shape.queries,
        "ROWS": shape.rows,
        "HKV": num_kv_heads,
        "DV": value_dim,
        "HAS_SINKS": sinks is not None,
    }
    _attend[(len(division.items), num_kv_heads)](
        query,
        keys,
        values,
        out,
        parts,
        sums,
        sinks if sinks is not None else sums,
        division.tiles,
        division.items,
        starts,
        pages,
        kv_lens,
        query.stride(0),
        query.stride(1),
        division.tiles.shape[1],
        pages.shape[1],
        options.scale,
        softcap if softcap is not None else 1.0,
        window if window is not None else 0,
        **tile,
        CAUSAL=causal,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        KEYS=shape.keys,
        PAGE=page_size,
        D=key_dim,
        BLOCK_D=max(16, triton.next_power_of_2(key_dim)),
        BLOCK_DV=max(16, triton.next_power_of_2(value_dim)),
        WIDE=query.device.type == "cpu",
        num_warps=_WARPS,
        num_stages=shape.stages,
    )
    if num_merges:
        _merge[(num_merges, num_kv_heads)](
            parts,
            sums,
            sinks if sinks is not None else sums,
            out,
            division.tiles,
            division.merges,
            starts,
            division.tiles.shape[1],
            **tile,
            BLOCK_DV=triton.next_power_of_2(value_dim),
            num_warps=_WARPS,
        )
    return out


def _floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


# Arguments that differ from step to step must not specialize the kernel: a compilation would stall
# requests for seconds.
@triton.jit(do_not_specialize=["num_tiles", "max_pages", "window"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    out,
    parts,
    sums,
    sinks,
    tiles,
    items,
    starts,
    pages,
    kv_lens,
    query_stride,
    head_stride,
    num_tiles,
    max_pages,
    scale,
    softcap,
    window,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    HKV: tl.constexpr,
    DV: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    WIDE: tl.constexpr,  # products in float32: the interpreter has none in bfloat16
):
    item = items + tl.program_id(0) * 4
    tile = tl.load(item)
    if tile < 0:
        return
    kv_head = tl.program_id(1)
    lo = tl.load(item + 1)
    hi = tl.load(item + 2)
    part = tl.load(item + 3)
    sequence = tl.load(tiles + tile)
    first = tl.load(tiles + num_tiles + tile)
    start = tl.load(starts + sequence)
    query_len = tl.load(starts + sequence + 1) - start
    kv_len = tl.load(kv_lens + sequence)
    hi = tl.minimum(hi, kv_len)  # a schedule may be made for longer sequences

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

    if part < 0:
        if HAS_SINKS:
            sink = tl.load(sinks + head).to(tl.float32)
            now = tl.maximum(largest, sink)
            shrink = tl.exp(largest - now)
            acc = acc * shrink[:, None]
            total = total * shrink + tl.exp(sink - now)
        some = tl.where(total > 0.0, total, 1.0)
        to = (start + nth).to(tl.int64) * (HKV * GROUP) + head
        tl.store(
            out + to[:, None] * DV + dim_v[None, :],
            (acc / some[:, None]).to(out.dtype.element_ty),
            mask=is_query[:, None] & (dim_v < DV)[None, :],
        )
    else:
        some = tl.where(total > 0.0, total, 1.0)
        to = (part.to(tl.int64) * HKV + kv_head) * ROWS + row
        tl.store(
            parts + to[:, None] * DV + dim_v[None, :],
            acc / some[:, None],
            mask=(dim_v < DV)[None, :],
        )
        tl.store(sums + to, tl.where(total > 0.0, largest + tl.log(some), float("-inf")))


@triton.jit(do_not_specialize=["num_tiles"])  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    parts,
    sums,
    sinks,
    out,
    tiles,
    merges,
    starts,
    num_tiles,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    HKV: tl.constexpr,
    DV: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Weight each part of a tile by its sum of exponentials; a sink adds one without a value."""
    merge = merges + tl.program_id(0) * 3
    tile = tl.load(merge)
    if tile < 0:
        return
    kv_head = tl.program_id(1)
    first_part = tl.load(merge + 1).to(tl.int64)
    count = tl.load(merge + 2)
    sequence = tl.load(tiles + tile)
    start = tl.load(starts + sequence)
    row = tl.arange(0, ROWS)
    nth = tl.load(tiles + num_tiles + tile) + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_query = (row < QUERIES * GROUP) & (nth < tl.load(starts + sequence + 1) - start)
    dim = tl.arange(0, BLOCK_DV)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        largest = tl.load(sinks + head).to(tl.float32)
        total += 1.0
    acc = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    for nth_part in range(count):
        at = ((first_part + nth_part) * HKV + kv_head) * ROWS + row
        weight = tl.load(sums + at)
        now = tl.maximum(largest, weight)
        safe = tl.where(now == float("-inf"), 0.0, now)
        shrink = tl.exp(largest - safe)
        factor = tl.exp(weight - safe)
        found = tl.load(
            parts + at[:, None] * DV + dim[None, :], mask=(dim < DV)[None, :], other=0.0
        )
        acc = acc * shrink[:, None] + found * factor[:, None]
        total = total * shrink + factor
        largest = now
    some = tl.where(total > 0.0, total, 1.0)
    to = (start + nth).to(tl.int64) * (HKV * GROUP) + head
    tl.store(
        out + to[:, None] * DV + dim[None, :],
        (acc / some[:, None]).to(out.dtype.element_ty),
        mask=is_query[:, None] & (dim < DV)[None, :],
    )
