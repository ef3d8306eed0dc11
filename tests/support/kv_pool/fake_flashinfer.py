"""A fake FlashInfer wrapper that computes dense attention from the arrays of its plan.

It follows FlashInfer's rules: plans are written into a graph's buffers, which never grow; a run
reads the latest plan; a graph's batch size is fixed.
"""

from typing import Any

import torch
from torch import Tensor


class FakeWrapper:
    """Replaces flashinfer.BatchPrefillWithPagedKVCacheWrapper."""

    made: list["FakeWrapper"]

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str,
        *,
        use_cuda_graph: bool = False,
        backend: str = "auto",
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
    ) -> None:
        assert kv_layout == "NHD"
        assert float_workspace_buffer.dtype == torch.uint8
        self.num_plans = 0
        self._buffers = (
            qo_indptr_buf,
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
        )
        self._is_fixed = use_cuda_graph
        assert backend == "fa2", "other backends compile a kernel at the first long prompt"
        if use_cuda_graph:
            assert all(buffer is not None for buffer in self._buffers)

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        *,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        uniform_q_len: int | None,
    ) -> None:
        arrays = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(array.dtype == torch.int32 for array in arrays)
        assert q_data_type in (torch.float16, torch.bfloat16)
        assert head_dim_qk in (64, 128, 256)
        if self._is_fixed:
            assert uniform_q_len is not None, "a graph's plan must pass it"
            assert (qo_indptr[1:] - qo_indptr[:-1] == uniform_q_len).all()
            for buffer, array in zip(self._buffers, arrays, strict=True):
                assert buffer is not None
                buffer[: len(array)] = array
            assert self._buffers[0] is not None
            assert len(self._buffers[0]) == len(qo_indptr)
            self._arrays: Any = self._buffers
        else:
            assert uniform_q_len is None
            self._arrays = arrays
        self._heads = (num_qo_heads, num_kv_heads, head_dim_qk)
        self._page_size = page_size
        self._causal = causal
        self._scale = sm_scale
        self._window_left = window_left
        self._softcap = logits_soft_cap
        self._dtypes = (q_data_type, kv_data_type)
        self.num_plans += 1

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        keys, values = paged_kv_cache
        num_heads, num_kv_heads, head_dim = self._heads
        assert q.shape[1:] == (num_heads, head_dim)
        assert keys.shape[1:] == (self._page_size, num_kv_heads, head_dim)
        assert (q.dtype, keys.dtype) == self._dtypes
        qo_indptr, kv_indptr, kv_indices, last_page_len = self._arrays
        assert (out.shape, out.dtype, out.device) == (q.shape, q.dtype, q.device)
        out.fill_(float("nan"))  # as uninitialised memory may be
        for b in range(len(qo_indptr) - 1):
            rows = slice(int(qo_indptr[b]), int(qo_indptr[b + 1]))
            pages = kv_indices[int(kv_indptr[b]) : int(kv_indptr[b + 1])].long()
            length = (len(pages) - 1) * self._page_size + int(last_page_len[b])
            k = keys[pages].flatten(0, 1)[:length]
            v = values[pages].flatten(0, 1)[:length]
            out[rows] = self._attend(q[rows], k, v)
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.float(), k) * self._scale
        if self._softcap > 0:
            scores = self._softcap * torch.tanh(scores / self._softcap)
        positions = len(k) - len(q) + torch.arange(len(q))[:, None]
        at = torch.arange(len(k))
        sees = at <= (positions if self._causal else torch.full_like(positions, len(k)))
        if self._window_left >= 0:
            sees &= at >= positions - self._window_left
        probs = torch.softmax(scores.masked_fill(~sees, float("-inf")), dim=-1)
        return torch.einsum("hqk,khd->qhd", probs, v).to(q.dtype)


def scratch_bytes(
    *,
    query_lens: list[int],
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    multiprocessors: int,
) -> int:
    """Count the workspace bytes of a graph's plan by FlashInfer's rules (scheduler.cuh)."""
    group, count = num_qo_heads // num_kv_heads, len(query_lens)

    def tile_for(packed: int) -> int:
        if packed > 64 and head_dim < 256:
            return 128
        return 64 if packed > 16 else 16

    packed = query_lens[0] * group
    tile = tile_for(packed)
    tiles = count * -(-packed // tile)
    padded = max(2 * multiprocessors // num_kv_heads, tiles)
    return num_qo_heads * padded * tile * (head_dim * 4 + 4) + 2 * 16
