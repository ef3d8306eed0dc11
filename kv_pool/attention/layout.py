"""Builds slot indices and masks for groups of sequences of equal query_len. Host only.

Within a group only the keys need padding, not the queries.

    group of B = 2 sequences, query_len 2, kv_lens 5 and 3, page_size 2, page tables [7 2 5], [0 3]

    slots    14 15  4  5 10      visible, causal     1 1 1 1 .      not causal    1 1 1 1 1
              0  1  6  0  0         (sequence 0)     1 1 1 1 1                    1 1 1 1 1
                      ^  ^          (sequence 1)     1 1 . . .                    1 1 1 . .
              padding: the sequence's                1 1 1 . .                    1 1 1 . .
              first slot, masked

A window cuts the slots too: keys that no query of a sequence attends to are not gathered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Describes sequences of equal query_len: their query rows and their slots."""

    query_len: int
    rows: Int64[np.ndarray, "R"]  # B * query_len packed query rows, sequence after sequence
    slots: tuple[Int64[np.ndarray, "_"], ...]  # of each sequence, for its whole kv_len


def group_by_query_len(
    *,
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    page_tables: Sequence[Sequence[int]],
    page_size: int,
) -> list[GroupLayout]:
    """Group a batch by query_len, in order of first appearance."""
    assert len(query_lens) == len(kv_lens) == len(page_tables), (
        f"{len(query_lens)} query_lens, {len(kv_lens)} kv_lens, {len(page_tables)} page tables"
    )
    starts = np.cumsum([0, *query_lens])
    members: dict[int, list[int]] = {}
    for b, (query_len, kv_len) in enumerate(zip(query_lens, kv_lens, strict=True)):
        assert 1 <= query_len <= kv_len, f"{query_len} queries over {kv_len} keys"
        members.setdefault(query_len, []).append(b)
    return [
        GroupLayout(
            query_len=query_len,
            rows=(starts[group][:, None] + np.arange(query_len)).ravel(),
            slots=tuple(sequence_slots(page_tables[b], kv_lens[b], page_size) for b in group),
        )
        for query_len, group in members.items()
    ]


def cut_to_window(group: GroupLayout, window: int | None) -> GroupLayout:
    """Drop the slots before the first query's window. Masks depend on distances, so stay valid."""
    if window is None:
        return group
    kept = group.query_len + window - 1
    return GroupLayout(group.query_len, group.rows, tuple(slots[-kept:] for slots in group.slots))


def padded_slots(group: GroupLayout) -> Int64[np.ndarray, "B S"]:
    """Pad the slots of each sequence with its first slot, whose KV is computed."""
    longest = max(slots.size for slots in group.slots)
    padded = np.empty((len(group.slots), longest), dtype=np.int64)
    for row, slots in zip(padded, group.slots, strict=True):
        row[: slots.size] = slots
        row[slots.size :] = slots[0]
    return padded


def visible(
    group: GroupLayout, *, causal: bool, window: int | None
) -> Bool[np.ndarray, "B Q S"] | None:
    """Build the mask of gathered keys that each query attends to; None if all are."""
    lens = np.array([slots.size for slots in group.slots])[:, None, None]  # (B, 1, 1)
    keys = np.arange(lens.max())  # (S,)
    queries = lens - group.query_len + np.arange(group.query_len)[:, None]  # (B, Q, 1) positions
    last = queries if causal else np.broadcast_to(lens - 1, queries.shape)
    seen = keys <= last  # (B, Q, S)
    if window is not None:
        seen = seen & (keys > queries - window)
    return None if seen.all() else seen


def sequence_slots(
    page_table: Sequence[int], kv_len: int, page_size: int
) -> Int64[np.ndarray, "_"]:
    """Return the slots of a sequence's first kv_len tokens; later table entries are not read."""
    num_pages = -(-kv_len // page_size)
    assert len(page_table) >= num_pages, f"{len(page_table)} pages for {kv_len} keys"
    pages = np.asarray(page_table[:num_pages], dtype=np.int64)
    return (pages[:, None] * page_size + np.arange(page_size)).ravel()[:kv_len]
