"""Builds the page index arrays that paged attention kernels read (FlashInfer, Triton).

    two sequences, query_lens 2 and 3, kv_lens 5 and 4, page_size 2, page tables [7 2 5 9], [0 3]

    qo_indptr       0  2  5         sequence b owns the query rows qo_indptr[b] : qo_indptr[b + 1]
    kv_indptr       0     3   5     and the pages kv_indices[kv_indptr[b] : kv_indptr[b + 1]]
    kv_indices      7  2  5 | 0  3
    last_page_lens        1      2  tokens in its last page, from 1 to page_size

Page table entries past a sequence's kv_len are not read: page 9 above.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Describes a batch of B sequences over P pages in total, in FlashInfer's terms."""

    last_page_lens: Int32[np.ndarray, "B"]
    qo_indptr: Int32[np.ndarray, "B+1"]
    kv_indptr: Int32[np.ndarray, "B+1"]
    kv_indices: Int32[np.ndarray, "P"]


def page_layout(
    *,
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    page_tables: Sequence[Sequence[int]],
    page_size: int,
) -> PageLayout:
    """Build the page layout of a batch. kv_lens include the queries' tokens, which come last."""
    assert len(query_lens) == len(kv_lens) == len(page_tables), (
        f"{len(query_lens)} query_lens, {len(kv_lens)} kv_lens, {len(page_tables)} page tables"
    )
    num_pages = [_num_pages(length, page_size) for length in kv_lens]
    for query_len, kv_len, table, count in zip(
        query_lens, kv_lens, page_tables, num_pages, strict=True
    ):
        assert 1 <= query_len <= kv_len, f"{query_len} queries over {kv_len} keys"
        assert len(table) >= count, f"{len(table)} pages for {kv_len} keys"
    used = [
        np.asarray(table[:count], dtype=np.int32)
        for table, count in zip(page_tables, num_pages, strict=True)
    ]
    lens = np.asarray(kv_lens, dtype=np.int32)
    return PageLayout(
        qo_indptr=_offsets(query_lens),
        kv_indptr=_offsets(num_pages),
        kv_indices=np.concatenate(used),
        last_page_lens=((lens - 1) % page_size + 1).astype(np.int32),
    )


def page_rows(
    *,
    kv_lens: Sequence[int],
    page_tables: Sequence[Sequence[int]],
    page_size: int,
) -> Int32[np.ndarray, "B P"]:
    """Build a rectangular page table, as wide as the longest sequence's.

    Columns past a sequence's pages are 0 and never read.
    """
    counts = [_num_pages(kv_len, page_size) for kv_len in kv_lens]
    rows = np.zeros((len(kv_lens), max(counts)), dtype=np.int32)
    for row, count, table in zip(rows, counts, page_tables, strict=True):
        assert count <= len(table), f"{len(table)} pages where {count} are needed"
        row[:count] = table[:count]
    return rows


def first_columns(buffer: Tensor, rows: Int32[np.ndarray, "B P"]) -> Tensor:
    """Return where page_rows belong in a wider `buffer`; kernels do not read later columns."""
    assert rows.shape[1] <= buffer.shape[1], f"{rows.shape[1]} pages, {buffer.shape[1]} wide"
    return buffer[:, : rows.shape[1]]


def _num_pages(length: int, page_size: int) -> int:
    return -(-length // page_size)


def _offsets(lengths: Sequence[int]) -> Int32[np.ndarray, "_"]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
