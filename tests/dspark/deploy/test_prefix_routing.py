"""A text goes to the replica that has seen most of it, unless that one is too busy."""

from dspark.deploy.prefix_routing import PrefixIndex, block_keys, choose

SYSTEM = "You are a helpful assistant of a shop for bicycles. " * 10


def test_texts_share_keys_as_far_as_their_blocks_are_equal() -> None:
    one, two = block_keys(SYSTEM + "a" * 200), block_keys(SYSTEM + "b" * 200)
    shared = len(SYSTEM) // 64
    assert one[:shared] == two[:shared]
    assert not set(one[shared:]) & set(two[shared:])
    assert block_keys("short") == ()


def test_a_long_text_has_a_bounded_number_of_keys() -> None:
    assert len(block_keys("x" * 10_000_000)) == 1024


def test_the_replica_that_has_seen_the_longest_beginning_is_chosen() -> None:
    index = PrefixIndex()
    index.insert(block_keys(SYSTEM), "a", "abc")
    index.insert(block_keys(SYSTEM + "and more " * 50), "b", "abc")
    loads = {"a": 0, "b": 3, "c": 0}
    text = SYSTEM + "and more " * 40
    assert index.match(block_keys(text), loads) == {"b"}
    assert choose(index, block_keys(text), loads, balance_threshold=3) == "b"


def test_of_replicas_that_have_seen_as_much_the_least_busy_is_chosen() -> None:
    index = PrefixIndex()
    for replica in "ab":
        index.insert(block_keys(SYSTEM), replica, "ab")
    loads = {"a": 2, "b": 1, "c": 0}
    assert choose(index, block_keys(SYSTEM), loads, balance_threshold=2) == "b"


def test_a_replica_above_the_threshold_does_not_get_its_text() -> None:
    index = PrefixIndex()
    index.insert(block_keys(SYSTEM), "a", "abc")
    loads = {"a": 9, "b": 0}
    assert choose(index, block_keys(SYSTEM), loads, balance_threshold=8) == "b"
    assert choose(index, block_keys(SYSTEM), loads, balance_threshold=9) == "a"


def test_a_text_that_none_has_seen_goes_to_the_less_busy_of_two() -> None:
    loads = {"a": 5, "b": 0}
    chosen = {choose(PrefixIndex(), (1, 2), loads, balance_threshold=8) for _ in range(20)}
    assert chosen == {"b"}
    assert choose(PrefixIndex(), (), {"a": 1}, balance_threshold=0) == "a"


def test_a_replica_that_has_ended_is_forgotten() -> None:
    index = PrefixIndex()
    keys = block_keys(SYSTEM)
    index.insert(keys, "a", "ab")
    assert index.match(keys, "bc") == frozenset()
    index.insert(keys, "b", "bc")
    assert index.match(keys, "abc") == {"b"}


def test_the_ends_of_the_oldest_texts_are_forgotten_first() -> None:
    index = PrefixIndex(max_entries=8)
    old, new = block_keys("o" * 640), block_keys("n" * 320)
    index.insert(old, "a", "ab")
    index.insert(new, "b", "ab")
    assert len(index) == 8
    assert index.match(new, ["a", "b"]) == {"b"}
    assert [key for key in old if index.match([key], ["a"])] == list(old[:3])
