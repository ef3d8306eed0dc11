"""Which recording a batch goes to, and where its padding lies."""

import pytest

from engine.graphs.scratch import ScratchPage
from engine.graphs.tiers import Tiers


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 64))],
)
def test_tiers_double_up_to_the_largest(largest: int, sizes: tuple[int, ...]) -> None:
    assert Tiers.up_to(largest).sizes == sizes


@pytest.mark.parametrize(("count", "tier"), [(1, 1), (3, 4), (5, 6), (6, 6), (7, None)])
def test_a_batch_goes_to_the_smallest_tier_that_holds_it(count: int, tier: int | None) -> None:
    assert Tiers.up_to(6).holding(count) == tier


@pytest.mark.parametrize(
    ("own_len", "length", "pages"),
    [(5, 8, [7, 2]), (5, 9, [7, 2, 99]), (8, 8, [7, 2]), (8, 16, [7, 2, 99, 99]), (0, 5, [99, 99])],
)
def test_what_a_sequence_does_not_own_is_the_scratch_page(
    own_len: int, length: int, pages: list[int]
) -> None:
    scratch = ScratchPage(page=99, page_size=4)
    assert scratch.cover([7, 2, 5], own_len=own_len, length=length) == pages
