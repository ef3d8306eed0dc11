"""The allocator counts references and never hands a page out twice."""

import pytest

from kv_pool import OutOfPages, PageAllocator


def test_no_page_is_allocated_twice() -> None:
    allocator = PageAllocator(num_pages=5)
    pages = allocator.allocate(2) + allocator.allocate(3)
    assert sorted(pages) == [0, 1, 2, 3, 4]
    assert allocator.num_free == 0


def test_a_request_for_too_many_pages_allocates_nothing() -> None:
    allocator = PageAllocator(num_pages=3)
    held = allocator.allocate(1)
    with pytest.raises(OutOfPages, match="3 pages needed, 2 of 3 are free"):
        allocator.allocate(3)
    assert allocator.num_free == 2
    assert sorted(held + allocator.allocate(2)) == [0, 1, 2]


def test_an_allocator_without_pages_allocates_none() -> None:
    allocator = PageAllocator(num_pages=0)
    assert allocator.allocate(0) == []


def test_a_page_is_free_when_its_last_reference_is_released() -> None:
    allocator = PageAllocator(num_pages=2)
    pages = allocator.allocate(2)
    allocator.retain(pages)
    allocator.release(pages)
    assert [allocator.num_references(page) for page in pages] == [1, 1]
    assert allocator.num_free == 0
    allocator.release(pages[:1])
    assert allocator.num_free == 1
    assert allocator.allocate(1) == pages[:1]


def test_a_free_page_cannot_be_released_or_retained() -> None:
    allocator = PageAllocator(num_pages=2)
    page, other = allocator.allocate(2)
    allocator.release([page])
    with pytest.raises(AssertionError, match="released more often than held"):
        allocator.release([page])
    with pytest.raises(AssertionError, match="retained while free"):
        allocator.retain([page])
    with pytest.raises(AssertionError, match="released more often than held"):
        allocator.release([other, other])
    assert allocator.num_references(other) == 1
