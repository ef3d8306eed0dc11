"""Computes attention one query head at a time over dense keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kv_pool import AttentionOptions, PageTable, ReferenceAttention


@dataclass(frozen=True)
class Heads:
    num_heads: int = 4
    num_kv_heads: int = 2
    key_dim: int = 8
    value_dim: int = 8


@dataclass(frozen=True)
class Options:
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def scaled(self, scale: float) -> AttentionOptions:
        return AttentionOptions(scale, self.window, self.softcap, self.sinks)


@dataclass
class Batch:
    """Holds ragged sequences in paged storage, and their keys and values in dense form."""

    page_size: int
    query_lens: list[int]
    kv_lens: list[int]
    query: Tensor  # [T, H, D]
    keys: Tensor  # [S, Hkv, D], paged
    values: Tensor  # [S, Hkv, Dv], paged
    dense_keys: list[Tensor]  # per sequence [kv_len, Hkv, D]
    dense_values: list[Tensor]
    page_tables: list[list[int]] = field(default_factory=list)


def make_batch(
    *,
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    page_size: int,
    heads: Heads | None = None,
    dtype: torch.dtype = torch.float32,
    unwritten: float = 0.0,
    seed: int = 0,
) -> Batch:
    """Build sequences on shuffled pages; slots without a token hold `unwritten`."""
    heads = heads or Heads()
    gen = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, generator=gen).to(dtype)

    tables = [PageTable(page_size) for _ in kv_lens]
    needed = [table.missing_pages(n) for table, n in zip(tables, kv_lens, strict=True)]
    pages = torch.randperm(sum(needed) + 3, generator=gen).tolist()
    num_slots = len(pages) * page_size
    batch = Batch(
        page_size=page_size,
        query_lens=list(query_lens),
        kv_lens=list(kv_lens),
        query=randn(sum(query_lens), heads.num_heads, heads.key_dim),
        keys=torch.full((num_slots, heads.num_kv_heads, heads.key_dim), unwritten, dtype=dtype),
        values=torch.full((num_slots, heads.num_kv_heads, heads.value_dim), unwritten, dtype=dtype),
        dense_keys=[randn(n, heads.num_kv_heads, heads.key_dim) for n in kv_lens],
        dense_values=[randn(n, heads.num_kv_heads, heads.value_dim) for n in kv_lens],
    )
    for b, table in enumerate(tables):
        table.extend([pages.pop() for _ in range(needed[b])])
        slots = torch.from_numpy(table.slots(0, kv_lens[b]))
        batch.keys[slots] = batch.dense_keys[b]
        batch.values[slots] = batch.dense_values[b]
        batch.page_tables.append(table.pages)
    return batch


def attend_paged(batch: Batch, options: Options, scale: float = 0.3) -> Tensor:
    """Attend with the reference backend."""
    backend = ReferenceAttention(page_size=batch.page_size, device=torch.device("cpu"))
    plan = backend.plan(
        query_lens=batch.query_lens,
        kv_lens=batch.kv_lens,
        page_tables=batch.page_tables,
        causal=options.causal,
    )
    return plan.attend(batch.query, batch.keys, batch.values, options.scaled(scale))


def attend_dense(batch: Batch, options: Options, scale: float = 0.3) -> Tensor:
    """Compute attention by its definition in float64: loop over sequences, rows and heads."""
    rows = []
    start = 0
    for b, query_len in enumerate(batch.query_lens):
        for i in range(query_len):
            position = batch.kv_lens[b] - query_len + i
            first = 0 if options.window is None else max(0, position - options.window + 1)
            stop = position + 1 if options.causal else batch.kv_lens[b]
            keys = batch.dense_keys[b][first:stop].double()
            values = batch.dense_values[b][first:stop].double()
            rows.append(_attend_row(batch.query[start + i].double(), keys, values, options, scale))
        start += query_len
    return torch.stack(rows)


def _attend_row(
    query: Tensor, keys: Tensor, values: Tensor, options: Options, scale: float
) -> Tensor:
    num_heads, num_kv_heads = query.shape[0], keys.shape[1]
    heads = []
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        scores = keys[:, kv_head] @ query[h] * scale
        if options.softcap is not None:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        weights = scores.exp()
        total = weights.sum()
        if options.sinks is not None:
            total = total + options.sinks[h].double().exp()
        heads.append((weights / total) @ values[:, kv_head])
    return torch.stack(heads)
