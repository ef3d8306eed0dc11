"""The page arrays of attention kernels describe the slots of the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_pool import PageTable
from kv_pool.attention.layout import sequence_slots
from kv_pool.attention.paging import first_columns, page_layout, page_rows
from kv_pool.attention.transfer import overwrite


def test_the_arrays_of_the_documented_example() -> None:
    layout = page_layout(
        query_lens=[2, 3], kv_lens=[5, 4], page_tables=[[7, 2, 5, 9], [0, 3]], page_size=2
    )
    assert layout.qo_indptr.tolist() == [0, 2, 5]
    assert layout.kv_indptr.tolist() == [0, 3, 5]
    assert layout.kv_indices.tolist() == [7, 2, 5, 0, 3]
    assert layout.last_page_lens.tolist() == [1, 2]


@settings(max_examples=60, deadline=None)
@given(
    lens=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=6),
    page_size=st.sampled_from([1, 2, 4, 16]),
    beyond=st.integers(0, 3),
)
def test_any_layout_names_the_slots_of_the_reference(
    lens: list[tuple[int, int]], page_size: int, beyond: int
) -> None:
    query_lens = [new for new, _ in lens]
    kv_lens = [new + cached for new, cached in lens]
    pages = np.random.default_rng(0).permutation(400).tolist()
    counts = [-(-length // page_size) for length in kv_lens]
    tables = [[pages.pop() for _ in range(count)] + [-1] * beyond for count in counts]
    layout = page_layout(
        query_lens=query_lens, kv_lens=kv_lens, page_tables=tables, page_size=page_size
    )
    rows = page_rows(kv_lens=kv_lens, page_tables=tables, page_size=page_size)
    assert rows.shape == (len(lens), max(counts))
    assert np.diff(layout.qo_indptr).tolist() == query_lens
    for b, (table, kv_len) in enumerate(zip(tables, kv_lens, strict=True)):
        mine = layout.kv_indices[layout.kv_indptr[b] : layout.kv_indptr[b + 1]]
        length = (len(mine) - 1) * page_size + int(layout.last_page_lens[b])
        assert length == kv_len
        want = sequence_slots(table, kv_len, page_size).tolist()
        assert sequence_slots(mine.tolist(), length, page_size).tolist() == want
        assert rows[b, : len(mine)].tolist() == mine.tolist()
        assert not rows[b, len(mine) :].any()


@pytest.mark.parametrize(
    ("query_lens", "kv_lens", "tables", "message"),
    [
        ([0], [4], [[0]], "0 queries over 4 keys"),
        ([5], [4], [[0]], "5 queries over 4 keys"),
        ([1], [5], [[0]], "1 pages for 5 keys"),
        ([1, 1], [4], [[0]], "2 query_lens, 1 kv_lens, 1 page tables"),
    ],
)
def test_what_does_not_fit_together_is_caught(
    query_lens: list[int], kv_lens: list[int], tables: list[list[int]], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        page_layout(query_lens=query_lens, kv_lens=kv_lens, page_tables=tables, page_size=4)


def test_rows_fill_the_first_columns_of_a_buffer_and_leave_the_rest() -> None:
    buffer = torch.full((2, 5), 9, dtype=torch.int32)
    rows = np.array([[1, 2, 3], [4, 0, 0]], dtype=np.int32)
    overwrite([(first_columns(buffer, rows), rows)])
    assert buffer.tolist() == [[1, 2, 3, 9, 9], [4, 0, 0, 9, 9]]
    with pytest.raises(AssertionError, match="6 pages, 5 wide"):
        first_columns(buffer, np.zeros((2, 6), dtype=np.int32))


def test_page_tables_are_memory_that_is_copied_in_one_piece() -> None:
    """At every step all tables of a batch are: 131072 pages for 128 sequences of 16384 tokens."""
    tables = [PageTable(4, [7, 2, 5]).pages, PageTable(4, [3]).pages]
    assert [memoryview(table).format for table in tables] == ["i", "i"]  # int32, as in the kernels
    rows = page_rows(kv_lens=[9, 4], page_tables=tables, page_size=4)
    assert rows.tolist() == [[7, 2, 5], [3, 0, 0]]
    layout = page_layout(query_lens=[1, 1], kv_lens=[9, 4], page_tables=tables, page_size=4)
    assert layout.kv_indices.tolist() == [7, 2, 5, 3]
