"""The distinct tokens of a text that only grows, and how often its output has each."""

from collections.abc import Sequence

import numpy as np

from engine.arrays import IntArray

_ROOM = 64  # tokens, at first


class TokenCounts:
    """Follows one sequence. Committed tokens stay, so what was counted is never read again.

    That matters for penalties, which want the whole history at every step.
    """

    __slots__ = ("_counts", "_ids", "_length", "_num_prompt", "_places")

    def __init__(self, *, num_prompt: int) -> None:
        """num_prompt: leading tokens that are no output."""
        self._num_prompt = num_prompt
        self._length = 0
        self._places: dict[int, int] = {}  # of each distinct token, in order of appearance
        self._ids = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)

    def follow(self, token_ids: Sequence[int]) -> tuple[IntArray, IntArray]:
        """The distinct tokens of the text as it is now, and their numbers in the output.

        token_ids is the text of the last call, or a longer one. The arrays are true until the
        next call.
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
