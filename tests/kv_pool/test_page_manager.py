"""Prefix sharing and eviction through the scheduler's interface."""

import pytest

from kv_pool import OutOfPages, PageManager


def make_pool(num_pages: int = 6, *, page_size: int = 2, prefix_cache: bool = True) -> PageManager:
    return PageManager(num_pages=num_pages, page_size=page_size, prefix_cache=prefix_cache)


def publish(pool: PageManager, tokens: str) -> list[int]:
    """Publish a sequence of these tokens; return its pages, which it still holds."""
    pages = pool.allocate(len(tokens) // pool.page_size)
    pool.publish(ids(tokens), pages)
    return pages


def leave(pool: PageManager, tokens: str) -> list[int]:
    """Publish a sequence of these tokens, then release it; return its pages."""
    pages = publish(pool, tokens)
    pool.release(pages)
    return pages


def match(pool: PageManager, tokens: str, max_tokens: int = 1000) -> list[int]:
    return pool.match_prefix(ids(tokens), max_tokens=max_tokens)


def ids(tokens: str) -> list[int]:
    return [ord(letter) for letter in tokens]


def test_published_pages_are_found_by_their_tokens() -> None:
    pool = make_pool()
    pages = leave(pool, "aabbcc")
    assert match(pool, "aabbcc") == pages
    assert match(pool, "aabbxx") == pages[:2]
    assert match(pool, "xxbbcc") == []


def test_pages_are_found_while_their_first_sequence_runs() -> None:
    pool = make_pool()
    pages = publish(pool, "aabb")
    assert match(pool, "aabb") == pages
    pool.release(pages)
    assert pool.num_used == 2  # the second sequence's
    assert pool.num_cached == 0


def test_the_same_tokens_after_other_tokens_are_another_prefix() -> None:
    pool = make_pool()
    first = leave(pool, "aazz")
    second = leave(pool, "bbzz")
    assert match(pool, "aazz") == first
    assert match(pool, "bbzz") == second
    assert match(pool, "zz") == []


def test_prefixes_of_different_salts_share_no_page() -> None:
    pool = make_pool(8)
    plain = leave(pool, "aabb")
    own: dict[str, list[int]] = {}
    for salt in ("x", "y"):
        own[salt] = pool.allocate(2)
        pool.publish(ids("aabb"), own[salt], salt=salt)
        pool.publish(ids("aabb"), own[salt], salt=salt)
    assert len({*plain, *own["x"], *own["y"]}) == 6
    for salt in ("x", "y"):
        assert pool.match_prefix(ids("aabb"), max_tokens=9, salt=salt) == own[salt]
        assert pool.match_prefix(ids("aaxx"), max_tokens=9, salt=salt) == own[salt][:1]
    assert match(pool, "aabb") == plain
    assert pool.match_prefix(ids("aabb"), max_tokens=9, salt="z") == []


def test_pages_with_a_salt_are_evicted_like_others() -> None:
    pool = make_pool(2)
    pages = pool.allocate(2)
    pool.publish(ids("aabb"), pages, salt="x")
    pool.release(pages)
    assert sorted(pool.allocate(2)) == sorted(pages)
    assert pool.match_prefix(ids("aabb"), max_tokens=9, salt="x") == []


def test_only_full_pages_within_the_limit_are_found() -> None:
    pool = make_pool()
    pages = leave(pool, "aabbcc")
    assert match(pool, "aabbc") == pages[:2]
    assert [match(pool, "aabbcc", limit) for limit in (0, 1, 2, 5)] == [
        [],
        [],
        pages[:1],
        pages[:2],
    ]


def test_token_ids_of_equal_hash_are_not_equal() -> None:
    assert hash(-1) == hash(-2)
    pool = make_pool()
    pages = pool.allocate(1)
    pool.publish([-1, -1], pages)
    assert pool.match_prefix([-2, -2], max_tokens=2) == []
    assert pool.match_prefix([-1, -1], max_tokens=2) == pages


def test_publishing_again_changes_nothing() -> None:
    pool = make_pool()
    pages = publish(pool, "aabb")
    pool.publish(ids("aabb"), pages)
    pool.publish(ids("aab"), pages[:1])
    pool.release(pages)
    assert (pool.num_used, pool.num_cached) == (0, 2)
    assert match(pool, "aabb") == pages


def test_a_sequence_publishes_page_by_page_as_it_grows() -> None:
    pool = make_pool()
    pages = pool.allocate(3)
    for full in range(4):
        pool.publish(ids("aabbcc"), pages[:full])
    assert match(pool, "aabbcc") == pages


def test_of_two_pages_with_the_same_tokens_the_first_stays() -> None:
    pool = make_pool()
    first = publish(pool, "aabb")
    second = publish(pool, "aabbcc")
    found = match(pool, "aabbcc")
    assert found == [*first, second[2]]
    for pages in (first, second, found):
        pool.release(pages)
    assert pool.num_cached == 3  # the second's copies are free
    assert pool.num_used == 0


def test_a_page_that_is_not_full_cannot_be_published() -> None:
    pool = make_pool()
    with pytest.raises(AssertionError, match="not all are full"):
        pool.publish(ids("aab"), pool.allocate(2))


def test_without_a_prefix_cache_nothing_is_found_or_kept() -> None:
    pool = make_pool(prefix_cache=False)
    leave(pool, "aabb")
    assert match(pool, "aabb") == []
    assert (pool.num_used, pool.num_cached, pool.num_available) == (0, 0, 6)


def test_cached_pages_are_available() -> None:
    pool = make_pool(6)
    leave(pool, "aabb")
    assert (pool.num_used, pool.num_cached, pool.num_available) == (0, 2, 6)
    assert sorted(pool.allocate(6)) == [0, 1, 2, 3, 4, 5]
    assert match(pool, "aabb") == []


def test_the_longest_idle_prefix_is_evicted_first() -> None:
    pool = make_pool(6)
    old = leave(pool, "aabb")
    new = leave(pool, "ccdd")
    pool.release(match(pool, "aabb"))  # used again: now more recent than the other
    pool.allocate(4)
    assert match(pool, "ccdd") == []
    assert match(pool, "aabb") == old
    assert new != old


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = make_pool(4)
    pages = leave(pool, "aabbccdd")
    for left in (3, 2, 1, 0):
        pool.allocate(1)
        found = match(pool, "aabbccdd")
        assert found == pages[:left]
        pool.release(found)


def test_a_prefix_released_beginning_first_is_still_evicted_end_first() -> None:
    pool = make_pool(3)
    pages = publish(pool, "aabbcc")
    for page in pages:
        pool.release([page])
    pool.allocate(1)
    assert match(pool, "aabbcc") == pages[:2]


def test_a_held_page_is_never_evicted() -> None:
    pool = make_pool(4)
    leave(pool, "aabbcc")
    held = match(pool, "aabb")
    assert pool.num_available == 2
    with pytest.raises(OutOfPages, match="3 pages needed, 2 of 4 are available"):
        pool.allocate(3)
    assert pool.num_cached == 1  # nothing was evicted
    assert not set(held) & set(pool.allocate(2))
    assert match(pool, "aabbcc") == held


def test_an_idle_page_before_a_held_one_can_be_evicted() -> None:
    pool = make_pool(4)
    first = publish(pool, "aa")
    second = publish(pool, "aabb")  # its own page for "aa", its "bb" after the first's "aa"
    pool.release(first)
    assert pool.num_available == 2
    taken = pool.allocate(2)
    assert not set(taken) & set(second)
    assert match(pool, "aabb") == []
    pool.release(taken)
    pool.publish(ids("aabb"), second)
    assert match(pool, "aabb") == second
    pool.release(second)
    pool.release(second)
    assert (pool.num_used, pool.num_available) == (0, 4)


def test_a_prefix_of_thousands_of_pages_can_be_evicted() -> None:
    pool = PageManager(num_pages=5001, page_size=1, prefix_cache=True)
    tokens = list(range(5000))
    first = pool.allocate(1)
    pool.publish(tokens[:1], first)
    own = pool.allocate(5000)
    pool.publish(tokens, own)
    pool.release(first)
    pool.allocate(1)
    assert pool.match_prefix(tokens, max_tokens=5000) == []


def test_a_flush_frees_idle_pages_and_unpublishes_held_ones() -> None:
    pool = make_pool(6)
    leave(pool, "aabb")
    held = publish(pool, "ccdd")
    assert pool.flush() == 2
    assert match(pool, "aabb") == match(pool, "ccdd") == []
    assert (pool.num_used, pool.num_cached) == (2, 0)
    pool.release(held)
    assert (pool.num_used, pool.num_cached, pool.num_available) == (0, 0, 6)
    assert pool.flush() == 0


def test_an_idle_page_cannot_be_released() -> None:
    pool = make_pool()
    pages = leave(pool, "aa")
    with pytest.raises(AssertionError, match="released more often than held"):
        pool.release(pages)


def test_a_page_cannot_be_published_with_two_contents() -> None:
    pool = make_pool()
    pages = publish(pool, "aabb")
    with pytest.raises(AssertionError, match="cached with other tokens"):
        pool.publish(ids("aaxx"), pages)
