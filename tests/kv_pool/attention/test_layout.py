"""Slots and masks of a group: the example in layout.py, in numbers."""

import numpy as np
import pytest

from kv_pool.attention.layout import (
    GroupLayout,
    cut_to_window,
    group_by_query_len,
    padded_slots,
    visible,
)


def two_sequences() -> GroupLayout:
    (group,) = group_by_query_len(
        query_lens=[2, 2], kv_lens=[5, 3], page_tables=[[7, 2, 5], [0, 3]], page_size=2
    )
    return group


def drawn(seen: np.ndarray | None) -> list[list[str]]:
    assert seen is not None
    return [
        ["".join(".1"[key] for key in row) for row in sequence.astype(int)] for sequence in seen
    ]


def test_short_sequences_are_padded_with_their_own_first_slot() -> None:
    assert padded_slots(two_sequences()).tolist() == [[14, 15, 4, 5, 10], [0, 1, 6, 0, 0]]


def test_each_query_attends_up_to_itself_or_to_its_whole_sequence() -> None:
    group = two_sequences()
    causal = visible(group, causal=True, window=None)
    assert drawn(causal) == [["1111.", "11111"], ["11...", "111.."]]
    whole = visible(group, causal=False, window=None)
    assert drawn(whole) == [["11111", "11111"], ["111..", "111.."]]


def test_a_window_cuts_the_slots_and_masks_the_rest() -> None:
    group = cut_to_window(two_sequences(), 2)
    assert padded_slots(group).tolist() == [[4, 5, 10], [0, 1, 6]]
    assert drawn(visible(group, causal=True, window=2)) == [["11.", ".11"], ["11.", ".11"]]


def test_decodes_of_one_length_need_no_mask() -> None:
    (equal,), (ragged,) = (
        group_by_query_len(
            query_lens=[1, 1], kv_lens=kv_lens, page_tables=[[0, 1], [2, 3]], page_size=4
        )
        for kv_lens in ([7, 7], [7, 6])
    )
    assert visible(equal, causal=True, window=None) is None
    assert visible(ragged, causal=True, window=None) is not None
    windowed = cut_to_window(ragged, 3)
    assert visible(windowed, causal=True, window=3) is None


def test_a_prompt_chunk_does_not_pad_the_decodes_of_its_batch() -> None:
    decode, chunk = group_by_query_len(
        query_lens=[1, 512, 1],
        kv_lens=[3, 512, 4],
        page_tables=[[0], range(1, 129), [200]],
        page_size=4,
    )
    assert decode.rows.tolist() == [0, 513]
    assert padded_slots(decode).shape == (2, 4)
    assert chunk.rows.tolist() == list(range(1, 513))


@pytest.mark.parametrize(
    ("query_len", "kv_len", "pages", "message"),
    [(0, 3, 1, "0 queries"), (4, 3, 1, "4 queries over 3 keys"), (1, 5, 1, "1 pages for 5 keys")],
)
def test_impossible_lengths_are_named(
    query_len: int, kv_len: int, pages: int, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        group_by_query_len(
            query_lens=[query_len],
            kv_lens=[kv_len],
            page_tables=[list(range(pages))],
            page_size=4,
        )
