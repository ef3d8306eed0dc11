"""Page tables map logical positions to physical slots."""

import numpy as np
import pytest

from kv_pool import PageTable


def test_positions_map_to_the_slots_of_their_pages() -> None:
    table = PageTable(page_size=4, pages=[7, 2, 5])
    assert table.slots(2, 6).tolist() == [30, 31, 8, 9]
    assert table.slots(8, 12).tolist() == [20, 21, 22, 23]
    assert table.slots(5, 6).dtype == np.int64


def test_no_positions_have_no_slots() -> None:
    assert PageTable(page_size=4).slots(0, 0).tolist() == []
    assert PageTable(page_size=4, pages=[1]).slots(4, 4).tolist() == []


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (-1, 2), (5, 4)])
def test_positions_without_a_page_have_no_slot(start: int, stop: int) -> None:
    with pytest.raises(AssertionError, match="8 slots"):
        PageTable(page_size=4, pages=[0, 1]).slots(start, stop)


def test_missing_pages_count_up_to_a_length() -> None:
    table = PageTable(page_size=4, pages=[7])
    assert [table.missing_pages(n) for n in (0, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]
    table.extend([3, 1])
    assert table.num_slots == 12
    assert table.missing_pages(9) == 0


def test_trimming_returns_the_pages_that_a_length_does_not_need() -> None:
    table = PageTable(page_size=4, pages=[7, 2, 5])
    assert table.trim(12) == []
    assert table.trim(5) == [5]
    assert table.trim(0) == [7, 2]
    assert len(table.pages) == 0
