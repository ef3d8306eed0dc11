"""Implements fixed-shape attention in PyTorch, to test graphs without attention kernels."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kv_pool.attention.backend import AttentionOptions, AttentionPlan
from kv_pool.attention.paging import first_columns, page_rows
from kv_pool.attention.reference import ReferenceAttention
from kv_pool.attention.transfer import overwrite


class FixedReference(ReferenceAttention):
    """Implements FixedBackend by gathering max_pages pages. Slow; runs on any device."""

    fixed_plan_bytes = 0
    follows_device_lens = True

    def __init__(self, *, page_size: int, device: torch.device) -> None:
        super().__init__(page_size=page_size, device=device)
        self._page = page_size
        self._on = device

    def fixed_plan(
        self, *, num_sequences: int, query_len: int, max_pages: int, causal: bool
    ) -> "FixedReferencePlan":
        return FixedReferencePlan(
            num_sequences=num_sequences,
            query_len=query_len,
            max_pages=max_pages,
            page_size=self._page,
            causal=causal,
            device=self._on,
        )


class FixedReferencePlan(AttentionPlan):
    """Attends from two buffers, lengths and pages, that `update` writes."""

    def __init__(
        self,
        *,
        num_sequences: int,
        query_len: int,
        max_pages: int,
        page_size: int,
        causal: bool,
        device: torch.device,
    ) -> None:
        self._query_len = query_len
        self._page_size = page_size
        self._causal = causal
        self._pages = torch.zeros(num_sequences, max_pages, dtype=torch.int32, device=device)
        self._kv_lens = torch.ones(num_sequences, dtype=torch.int32, device=device)

    def update(
        self,
        *,
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        least_kv_lens: Sequence[int] | None = None,
    ) -> None:
        """See FixedPlan.update."""
        rows = page_rows(kv_lens=kv_lens, page_tables=page_tables, page_size=self._page_size)
        lens = np.asarray(kv_lens, dtype=np.int32)
        overwrite([(first_columns(self._pages, rows), rows), (self._kv_lens, lens)])

    def set_kv_lens(self, kv_lens: Int[Tensor, "B"]) -> None:
        """See FixedPlan.set_kv_lens."""
        self._kv_lens[: len(kv_lens)] = kv_lens

    def attend(
        self,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        """See AttentionPlan.attend."""
        num_sequences, max_pages = self._pages.shape
        device = query.device
        offsets = torch.arange(self._page_size, device=device)
        slots = (self._pages.long()[:, :, None] * self._page_size + offsets).flatten(1)  # (B, S)
        at = torch.arange(max_pages * self._page_size, device=device)
        steps = torch.arange(self._query_len, device=device)
        lens = self._kv_lens.long()[:, None, None]  # (B, 1, 1)
        positions = lens - self._query_len + steps[:, None]  # (B, Q, 1)
        sees = at < lens if not self._causal else at <= positions
        if options.window is not None:
            sees = sees & (at > positions - options.window)
        group = query.shape[1] // keys.shape[1]
        inside = (at < lens[:, 0])[:, :, None, None]  # (B, S, 1, 1)
        k, v = (
            x[slots].float().masked_fill(~inside, 0.0).repeat_interleave(group, dim=2)
            for x in (keys, values)
        )
        q = query.view(num_sequences, self._query_len, *query.shape[1:]).float()
        scores = torch.einsum("bqhd,bshd->bhqs", q, k) * options.scale
        if options.softcap is not None:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        scores = scores.masked_fill(~sees[:, None], float("-inf"))
        if options.sinks is not None:
            sink = options.sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], dim=-1)
        probs = torch.softmax(scores, dim=-1)[..., : len(at)]
        return torch.einsum("bhqs,bshd->bqhd", probs, v).flatten(0, 1).to(query.dtype)
