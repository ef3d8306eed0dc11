"""Implements attention in PyTorch: gathers the pages, then scaled_dot_product_attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kv_pool.attention.backend import AttentionOptions
from kv_pool.attention.layout import (
    GroupLayout,
    cut_to_window,
    group_by_query_len,
    padded_slots,
    visible,
)
from kv_pool.attention.transfer import to_device

# Up to this length, query heads of one KV head become extra query rows: several times faster
# for a few rows. For longer queries, repeating the mask costs more than that saves.
_MAX_FOLDED_QUERY_LEN = 32


class ReferenceAttention:
    """Implements AttentionBackend on any device. Other backends are checked against it."""

    name = "reference"

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
    ) -> "ReferencePlan":
        """Build the batch's index tensors; each is copied to the device once."""
        groups = group_by_query_len(
            query_lens=query_lens,
            kv_lens=kv_lens,
            page_tables=page_tables,
            page_size=self._page_size,
        )
        return ReferencePlan(groups=groups, causal=causal, device=self._device)


class ReferencePlan:
    """Attends per group of equal query_len: one gather and one softmax per group and layer."""

    def __init__(
        self, *, groups: Sequence[GroupLayout], causal: bool, device: torch.device
    ) -> None:
        self._layouts = groups
        self._causal = causal
        self._device = device
        self._rows = [_row_index(layout.rows, device) for layout in groups]
        self._groups: dict[int | None, list[_Group]] = {None: self._cut_groups(None)}

    def attend(
        self,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        """See AttentionPlan.attend."""
        window = options.window
        if window not in self._groups:
            self._groups[window] = self._cut_groups(window)
        groups = self._groups[window]
        if len(groups) == 1:
            return groups[0].attend(query, keys, values, options)
        result = query.new_empty(*query.shape[:2], values.shape[2])
        for rows, group in zip(self._rows, groups, strict=True):
            result[rows] = group.attend(query[rows], keys, values, options)
        return result

    def _cut_groups(self, window: int | None) -> list["_Group"]:
        return [
            _build_group(layout, self._causal, window, self._device) for layout in self._layouts
        ]


@dataclass(frozen=True, slots=True)
class _Group:
    """Attends for B sequences of Q queries each, over S gathered keys."""

    query_len: int
    slots: Int[Tensor, "BS"]  # flat [B, S]
    num_sequences: int
    seen: Bool[Tensor, "B Q S"] | None  # None: every query attends to every key
    biases: dict[tuple[torch.dtype, int], Float[Tensor, "B 1 R S"]]  # of `seen`, when first needed

    def attend(
        self,
        query: Float[Tensor, "R H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "R H Dv"]:
        num_heads = query.shape[1]
        fold = num_heads // keys.shape[1] if self.query_len <= _MAX_FOLDED_QUERY_LEN else 1
        q = self._fold(query, fold)  # (B, H / fold, fold * Q, D)
        k = self._gather(keys).to(query.dtype)  # (B, Hkv, S, D)
        v = self._gather(values).to(query.dtype)
        bias = self._bias(query.dtype, fold)
        if options.softcap is None and options.sinks is None:
            is_grouped = q.shape[1] != k.shape[1]
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=bias, scale=options.scale, enable_gqa=is_grouped
            )
        else:
            out = _explicit_attention(q, k, v, bias, options)
        return self._unfold(out, fold).reshape(query.shape[0], num_heads, -1)

    def _fold(self, query: Tensor, fold: int) -> Tensor:
        shape = (self.num_sequences, self.query_len, -1, fold, query.shape[2])
        return query.view(shape).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def _unfold(self, out: Tensor, fold: int) -> Tensor:
        shape = (self.num_sequences, out.shape[1], fold, self.query_len, out.shape[3])
        return out.view(shape).permute(0, 3, 1, 2, 4)

    def _gather(self, storage: Tensor) -> Tensor:
        gathered = storage.index_select(0, self.slots)
        return gathered.view(self.num_sequences, -1, *storage.shape[1:]).transpose(1, 2)

    def _bias(self, dtype: torch.dtype, fold: int) -> Tensor | None:
        if self.seen is None:
            return None
        if (dtype, fold) not in self.biases:
            seen = self.seen.repeat(1, fold, 1).unsqueeze(1)  # (B, 1, fold * Q, S)
            zeros = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            self.biases[dtype, fold] = zeros.masked_fill_(~seen, float("-inf"))
        return self.biases[dtype, fold]


def _build_group(
    layout: GroupLayout, causal: bool, window: int | None, device: torch.device
) -> _Group:
    cut = cut_to_window(layout, window)
    seen = visible(cut, causal=causal, window=window)
    return _Group(
        query_len=cut.query_len,
        slots=to_device(padded_slots(cut).ravel(), device),
        num_sequences=len(cut.slots),
        seen=None if seen is None else to_device(seen, device),
        biases={},
    )


def _row_index(rows: np.ndarray, device: torch.device) -> slice | Tensor:
    """Return a slice if the rows are contiguous: slicing needs no gather."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == rows.size:
        return slice(first, last + 1)
    return to_device(rows, device)


def _explicit_attention(
    q: Float[Tensor, "B Hq R D"],
    k: Float[Tensor, "B Hkv S D"],
    v: Float[Tensor, "B Hkv S Dv"],
    bias: Float[Tensor, "B 1 R S"] | None,
    options: AttentionOptions,
) -> Float[Tensor, "B Hq R Dv"]:
    """Compute attention explicitly in float32, with softcap and sinks."""
    expand = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(expand, dim=1) for x in (k, v))
    scores = q.float() @ k.transpose(2, 3) * options.scale  # (B, Hq, R, S)
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if bias is not None:
        scores = scores + bias
    if options.sinks is not None:
        # Folded rows are ordered by head: a head's sink applies to R / fold rows.
        fold = options.sinks.shape[0] // q.shape[1]
        sink = options.sinks.float().view(-1, fold).repeat_interleave(q.shape[2] // fold, dim=1)
        sink = sink[None, :, :, None].expand(q.shape[0], -1, -1, -1)  # (B, Hq, R, 1)
        scores = torch.cat([scores, sink], dim=-1)
    probs = torch.softmax(scores, dim=-1)[..., : k.shape[2]]
    return (probs @ v).to(q.dtype)
