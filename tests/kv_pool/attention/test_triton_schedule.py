"""Keys are divided by the total work, and tiles are as large as the device's memory allows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_pool.attention.triton_schedule import (
    Schedule,
    TileShape,
    most_parts,
    padded,
    schedule,
    tile_table,
)

PROGRAMS = 33  # for each of 8 KV heads on an H200


def divided(
    kv_lens: list[int],
    *,
    query_lens: list[int] | None = None,
    queries: int = 8,
    causal: bool = True,
    window: int | None = None,
    num_programs: int = PROGRAMS,
) -> Schedule:
    query_lens = query_lens or [8] * len(kv_lens)
    return schedule(
        tile_table(query_lens, queries),
        queries=queries,
        query_lens=query_lens,
        kv_lens=kv_lens,
        causal=causal,
        window=window,
        num_programs=num_programs,
    )


def longest(found: Schedule) -> int:
    return int((found.items[:, 2] - found.items[:, 1]).max())


def test_one_long_context_among_short_ones_is_no_serial_tail() -> None:
    found = divided([16_384] + [500] * 63)
    total = 16_384 + 63 * 500
    assert longest(found) <= -(-total // PROGRAMS)
    assert found.merges.tolist() == [[0, 0, 12]]
    assert (found.items[12:, 3] == -1).all()


@pytest.mark.parametrize(
    ("kv_lens", "window", "parts"),
    [
        ([16_384], None, 33),
        ([600], None, 3),
        ([100], None, 0),
        ([16_384], 512, 3),
        ([16_384] * 8, None, 40),
        ([16_384] * 128, None, 0),
        ([1_000] * 64, None, 0),
    ],
)
def test_few_sequences_with_long_contexts_are_split(
    kv_lens: list[int], window: int | None, parts: int
) -> None:
    found = divided(kv_lens, window=window)
    assert found.num_parts == parts
    assert len(found.merges) == (len(kv_lens) if parts else 0)


@settings(deadline=None)
@given(
    lens=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 9000)), min_size=1, max_size=20),
    queries=st.sampled_from([1, 3, 8, 64]),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 300, 4096]),
    num_programs=st.sampled_from([1, 4, 33, 264]),
)
def test_items_cover_the_keys_of_every_tile_once_within_the_fixed_sizes(
    lens: list[tuple[int, int]],
    queries: int,
    causal: bool,
    window: int | None,
    num_programs: int,
) -> None:
    query_lens = [query for query, _ in lens]
    kv_lens = [query + past for query, past in lens]
    tiles = tile_table(query_lens, queries)
    found = divided(
        kv_lens,
        query_lens=query_lens,
        queries=queries,
        causal=causal,
        window=window,
        num_programs=num_programs,
    )
    most_items, most_merges, most = most_parts(tiles.shape[1], num_programs)
    assert len(found.items) <= most_items
    assert len(found.merges) <= most_merges
    assert found.num_parts <= most
    parts: list[int] = []
    for tile, (sequence, first) in enumerate(tiles.T):
        own = found.items[found.items[:, 0] == tile]
        start = kv_lens[sequence] - query_lens[sequence] + first
        end = min(kv_lens[sequence], start + queries) if causal else kv_lens[sequence]
        begin = max(0, start - window + 1) if window is not None else 0
        assert (own[0, 1], own[-1, 2]) == (begin, end)
        assert (own[1:, 1] == own[:-1, 2]).all()
        assert (own[:, 2] > own[:, 1]).all()
        merges = found.merges[found.merges[:, 0] == tile]
        if len(own) == 1:
            assert (own[0, 3], len(merges)) == (-1, 0)
        else:
            ((_, first_part, count),) = merges
            assert own[:, 3].tolist() == list(range(first_part, first_part + count))
            parts += own[:, 3].tolist()
    assert sorted(parts) == list(range(found.num_parts))


def test_unused_rows_are_minus_one() -> None:
    assert padded(np.ones((1, 3), dtype=np.int32), 3).tolist() == [[1] * 3, [-1] * 3, [-1] * 3]


@pytest.mark.parametrize(
    ("itemsize", "dim", "shared_kib", "rows", "keys", "stages"),
    [
        (2, 128, 227, 64, 64, 2),
        (2, 128, 99, 64, 64, 2),
        (2, 256, 227, 64, 64, 2),
        (2, 256, 99, 64, 32, 1),
        (2, 512, 227, 64, 64, 1),
        (4, 128, 227, 64, 64, 2),
        (4, 128, 99, 64, 32, 1),
        (4, 256, 163, 64, 32, 1),
        (4, 256, 99, 32, 16, 2),
        (4, 512, 99, 16, 16, 1),
    ],
)
def test_a_tile_is_as_large_as_shared_memory_allows(
    itemsize: int, dim: int, shared_kib: int, rows: int, keys: int, stages: int
) -> None:
    found = TileShape.of(
        group=4,
        longest=100,
        key_dim=dim,
        value_dim=dim,
        itemsize=itemsize,
        shared_bytes=shared_kib * 1024,
    )
    assert found == TileShape(rows=rows, queries=rows // 4, keys=keys, stages=stages)


def test_heads_that_fit_into_no_tile_are_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match=r"heads of 2048 and 2048 in 4 bytes do not fit into"):
        TileShape.of(
            group=4,
            longest=100,
            key_dim=2048,
            value_dim=2048,
            itemsize=4,
            shared_bytes=99 * 1024,
        )
