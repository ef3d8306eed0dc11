"""Implements paged attention with the project's Triton kernels, eagerly and in CUDA graphs."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kv_pool.attention.backend import AttentionOptions
from kv_pool.attention.paging import overwrite_rows, page_rows
from kv_pool.attention.transfer import overwrite, to_device
from kv_pool.attention.triton_kernels import Tiles, launch

_TILE_ROWS = 64  # query rows times heads of one KV head that a program holds at most


class TritonAttention:
    """Implements AttentionBackend and FixedBackend, with all options."""

    name = "triton"
    fixed_plan_bytes = 0

    def __init__(self, *, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        self._device = device

    def plan(
        self,
        *,
        query_lens: Sequence[int],
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        causal: bool,
    ) -> "TritonPlan":
        plan = TritonPlan(
            query_lens=query_lens,
            max_pages=max(-(-length // self._page_size) for length in kv_lens),
            page_size=self._page_size,
            causal=causal,
            max_kv_len=max(kv_lens),
            device=self._device,
        )
        plan.update(kv_lens=kv_lens, page_tables=page_tables)
        return plan

    def fixed_plan(
        self, *, num_sequences: int, query_len: int, max_pages: int, causal: bool
    ) -> "TritonPlan":
        return TritonPlan(
            query_lens=[query_len] * num_sequences,
            max_pages=max_pages,
            page_size=self._page_size,
            causal=causal,
            max_kv_len=max_pages * self._page_size,
            device=self._device,
        )


class TritonPlan:
    """Holds page tables as a rectangle on the device, and the queries' tiles.

    tile    (sequence, first query): one program per tile, KV head and split
    split   one of a few equal parts of a tile's keys: few sequences with long contexts then
            occupy the whole device; a second kernel combines the parts
    """

    def __init__(
        self,
        *,
        query_lens: Sequence[int],
        max_pages: int,
        page_size: int,
        causal: bool,
        max_kv_len: int,
        device: torch.device,
    ) -> None:
        self._query_lens = list(query_lens)
        self._max_pages = max_pages
        self._page_size = page_size
        self._causal = causal
        self._max_kv_len = max_kv_len
        self._device = device
        starts = np.concatenate([[0], np.cumsum(self._query_lens)]).astype(np.int32)
        self._starts = to_device(starts, device)
        num_sequences = len(self._query_lens)
        self._pages = torch.zeros(num_sequences, max_pages, dtype=torch.int32, device=device)
        self._kv_lens = torch.ones(num_sequences, dtype=torch.int32, device=device)
        self._tiles: dict[int, Tiles] = {}  # by heads per KV head

    def update(self, *, kv_lens: Sequence[int], page_tables: Sequence[Sequence[int]]) -> None:
        """See FixedPlan.update."""
        for query_len, kv_len in zip(self._query_lens, kv_lens, strict=True):
            assert 1 <= query_len <= kv_len, f"{query_len} queries over {kv_len} keys"
        rows = page_rows(kv_lens=kv_lens, page_tables=page_tables, page_size=self._page_size)
        overwrite_rows(self._pages, rows)
        overwrite(self._kv_lens, np.asarray(kv_lens, dtype=np.int32))

    def attend(
        self,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        """See AttentionPlan.attend."""
        group = query.shape[1] // keys.shape[1]
        if group not in self._tiles:
            self._tiles[group] = self._cut(group)
        return launch(
            query,
            keys,
            values,
            tiles=self._tiles[group],
            starts=self._starts,
            pages=self._pages,
            kv_lens=self._kv_lens,
            page_size=self._page_size,
            max_kv_len=self._max_kv_len,
            causal=self._causal,
            options=options,
        )

    def _cut(self, group: int) -> Tiles:
        rows = min(_TILE_ROWS, group * max(self._query_lens))
        num_rows = max(16, 1 << (max(rows, group) - 1).bit_length())
        queries = num_rows // group
        cut = [
            (sequence, first)
            for sequence, query_len in enumerate(self._query_lens)
            for first in range(0, query_len, queries)
        ]
        table = np.asarray(cut, dtype=np.int32).T.copy()
        return Tiles(table=to_device(table, self._device), queries=queries, num_rows=num_rows)
