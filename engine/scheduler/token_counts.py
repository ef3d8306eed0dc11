"""Counts the distinct tokens of a growing sequence and their occurrences in the output."""

from collections.abc import Sequence

import numpy as np

from engine.arrays import IntArray

_ROOM = 64  # tokens, initially


class TokenCounts:
    """Counts one sequence's tokens incrementally, for penalties: each token is read once."""

    __slots__ = ("_counts", "_ids", "_length", "_num_prompt", "_places")

    def __init__(self, *, num_prompt: int) -> None:
        """num_prompt: leading tokens that do not count as output."""
        self._num_prompt = num_prompt
        self._length = 0
        self._places: dict[int, int] = {}  # of each distinct token, in order of appearance
        self._ids = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)

    def follow(self, token_ids: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Return the distinct tokens, and their numbers of occurrences in the output.

        token_ids must extend those of the last call. The arrays are valid until the next call.
        """
        assert len(token_ids) >= self._length, f"{len(token_ids)} tokens, {self._length} counted"
        for position in range(self._length, len(token_ids)):
            self._count(token_ids[position], is_output=position >= self._num_prompt)
        self._length = len(token_ids)
        found = len(self._places)
        return self._ids[:found], self._counts[:found]

    def _count(self, token_id: int, *, is_output: bool) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            more = max(_ROOM, len(self._ids))
            self._ids = np.pad(self._ids, (0, more))
            self._counts = np.pad(self._counts, (0, more))
        self._ids[place] = token_id
        self._counts[place] += is_output
