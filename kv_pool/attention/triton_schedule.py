"""Divides the attention of a batch into programs of about equal work, for the Triton kernels.

    tile    (sequence, first query): the rows of one program
    item    a tile and a range of its keys: one program for each KV head
    merge   a tile whose keys are split over several items, and where their results lie

Keys are split by the total work: a tile with many keys among tiles with few is split as finely as
the device needs, and the others stay whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

_TILE_ROWS = 64  # query rows times heads of one KV head that a program holds at most
_TILE_KEYS = 64  # keys of one loop iteration at most
_STAGES = 2
_SMALLEST = 16  # of rows and keys: the least that a tensor core multiplies
_MIN_SPLIT = 256  # keys; shorter splits cost more to combine than they gain
_OVERHEAD = 1024  # bytes of shared memory that the compiler adds at most

IntTable = Int32[np.ndarray, "_ _"]


@dataclass(frozen=True, slots=True)
class TileShape:
    """The rows of a tile and the keys of one loop iteration."""

    rows: int  # a power of two, at least queries * group
    queries: int  # of one tile
    keys: int
    stages: int  # iterations whose keys and values are in shared memory at a time

    @classmethod
    def of(
        cls,
        *,
        group: int,
        longest: int,
        key_dim: int,
        value_dim: int,
        itemsize: int,
        shared_bytes: int,
    ) -> "TileShape":
        """Choose the largest tile whose operands fit into the shared memory of a program.

        group: query heads of a KV head; longest: queries of a sequence at most.
        key_dim, value_dim: padded to powers of two. itemsize: bytes of a number.
        """
        smallest = max(_SMALLEST, _power_of_two(group))
        rows = max(smallest, _power_of_two(min(_TILE_ROWS, group * longest)))
        keys, stages = _TILE_KEYS, _STAGES
        while not _fits(rows, keys, stages, key_dim, value_dim, itemsize, shared_bytes):
            if stages > 1:
                stages -= 1
                continue
            if keys > _SMALLEST and (keys * (key_dim + value_dim) >= rows * key_dim):
                keys //= 2
            elif rows > smallest:
                rows //= 2
            elif keys > _SMALLEST:
                keys //= 2
            else:
                raise ValueError(
                    f"heads of {key_dim} and {value_dim} in {itemsize} bytes do not fit into "
                    f"{shared_bytes} bytes of shared memory"
                )
            stages = _STAGES
        return cls(rows=rows, queries=rows // group, keys=keys, stages=stages)


def _fits(
    rows: int,
    keys: int,
    stages: int,
    key_dim: int,
    value_dim: int,
    itemsize: int,
    shared_bytes: int,
) -> bool:
    """Check queries, keys, values and probabilities against the shared memory.

    A compiler may keep less, such as queries in registers, and does not keep more.
    """
    numbers = rows * key_dim + stages * keys * (key_dim + value_dim) + rows * keys
    return numbers * itemsize + _OVERHEAD <= shared_bytes


def _power_of_two(size: int) -> int:
    """Round up to a power of two."""
    return 1 << (size - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Schedule:
    """Items and merges of one batch; rows of -1 at the end are unused."""

    items: IntTable  # [C, 4]: tile, first key, end of keys, part (-1: the tile is whole)
    merges: IntTable  # [M, 3]: tile, its first part, number of parts
    num_parts: int


def tile_table(query_lens: Sequence[int], queries: int) -> IntTable:
    """Cut every sequence's queries into tiles: [2, N], sequence and first query."""
    cut = [
        (sequence, first)
        for sequence, query_len in enumerate(query_lens)
        for first in range(0, query_len, queries)
    ]
    return np.asarray(cut, dtype=np.int32).T.copy()


def most_parts(num_tiles: int, num_programs: int) -> tuple[int, int, int]:
    """Return the most items, merges and parts of any schedule of num_tiles."""
    return num_tiles + num_programs, min(num_tiles, num_programs), 2 * num_programs


def schedule(
    tiles: IntTable,
    *,
    queries: int,
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    causal: bool,
    window: int | None,
    num_programs: int,
    least_kv_lens: Sequence[int] | None = None,
) -> Schedule:
    """Divide all keys into about num_programs parts of equal length, none below _MIN_SPLIT.

    A tile that is shorter than a part is one item. With least_kv_lens, the items cover the keys of
    any lengths from these to kv_lens.
    """
    least = kv_lens if least_kv_lens is None else least_kv_lens
    lens, least_lens, query_len = (
        np.asarray(x, dtype=np.int64)[tiles[0]] for x in (kv_lens, least, query_lens)
    )
    first = tiles[1] - query_len  # the tile's first query, from the end of the keys
    end = np.minimum(lens, lens + first + queries) if causal else lens
    begin = (
        np.maximum(0, least_lens + first - window + 1) if window is not None else np.zeros_like(end)
    )
    keys = end - begin
    part = max(_MIN_SPLIT, -(-int(keys.sum()) // num_programs))
    counts = -(-keys // part)
    size = -(-keys // counts)
    counts = -(-keys // size)  # of equal sizes, fewer may suffice
    tile = np.repeat(np.arange(len(keys)), counts)
    nth = np.arange(len(tile)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = begin[tile] + nth * size[tile]
    is_split = counts > 1
    split = is_split[tile]
    items = np.stack(
        [
            tile,
            starts,
            np.minimum(starts + size[tile], end[tile]),
            np.where(split, np.cumsum(split) - 1, -1),
        ],
        axis=1,
    )
    of_split = counts[is_split]
    merges = np.stack([np.flatnonzero(is_split), np.cumsum(of_split) - of_split, of_split], axis=1)
    return Schedule(items.astype(np.int32), merges.astype(np.int32), int(of_split.sum()))


def padded(rows: IntTable, count: int) -> IntTable:
    """Append rows of -1, to `count` rows."""
    result = np.full((count, rows.shape[1]), -1, dtype=np.int32)
    result[: len(rows)] = rows
    return result
