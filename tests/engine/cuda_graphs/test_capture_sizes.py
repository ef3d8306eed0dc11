"""Capture sizes of batches, and the pages of their padding."""

import pytest

from engine.cuda_graphs.capture_sizes import CaptureSizes
from engine.cuda_graphs.scratch import ScratchPage


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (6, (1, 2, 4, 6)),
        (20, (1, 2, 4, 8, 12, 16, 20)),
        (64, (1, 2, 4, *range(8, 33, 4), 40, 48, 56, 64)),
        (50, (1, 2, 4, *range(8, 33, 4), 40, 48, 50)),
    ],
)
def test_capture_sizes_are_dense_up_to_the_largest(largest: int, sizes: tuple[int, ...]) -> None:
    assert CaptureSizes.up_to(largest).sizes == sizes


@pytest.mark.parametrize(("count", "capture_size"), [(1, 1), (3, 4), (5, 6), (6, 6), (7, None)])
def test_a_batch_takes_the_smallest_size_that_holds_it(
    count: int, capture_size: int | None
) -> None:
    assert CaptureSizes.up_to(6).holding(count) == capture_size


@pytest.mark.parametrize(("length", "pages"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_padding_sequences_have_the_scratch_page_for_all_their_tokens(
    length: int, pages: int
) -> None:
    scratch = ScratchPage(page=99, page_size=4)
    assert scratch.pad_tables([[3], [7]], length, 3) == [[3], [7], [99] * pages]
    assert scratch.slot == 396
