"""Estimates how likely drafts are accepted: by request, and over all requests."""

from collections.abc import Sequence

import numpy as np

from engine.arrays import IntArray
from engine.draft_length.cost_model import FloatArray

# Weights of the starting chances, and of the chances over all requests, in rounds.
_PRIOR_ROUNDS = 4.0
_SHARED_ROUNDS = 3.0
# What is left of a count after one more round of the request, and after a step without one, which
# counts less. Counts over all requests decay more slowly.
_ROUND_DECAY = 0.85
_STEP_DECAY = 0.995
_SHARED_ROUND_DECAY = 1 - 1 / 256
_SHARED_STEP_DECAY = 1 - 1 / 1000


class AcceptanceTable:
    """Counts tries and acceptances in C columns, for each row (request) and over all of them.

    A column is a draft position, or a class of match lengths. Old counts decay, so chances return
    to those over all requests, and these to where they began.
    """

    def __init__(self, priors: Sequence[float]) -> None:
        """priors: the chance of each column before any round."""
        self._priors = np.array(priors)
        self._shared = np.zeros((2, len(priors)))  # tries, acceptances
        self._rows = np.zeros((8, 2, len(priors)))
        self._shared_chances = self._priors

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def clear(self, row: int) -> None:
        """Let a request begin in a row; rows are made as needed."""
        if row >= len(self._rows):
            more = np.zeros((max(row + 1, 2 * len(self._rows)), *self._rows.shape[1:]))
            more[: len(self._rows)] = self._rows
            self._rows = more
        self._rows[row] = 0.0

    def pass_steps(self, count: int) -> None:
        """Decay the counts of all rows, and of all requests together, by some steps."""
        self._shared *= _SHARED_STEP_DECAY**count
        self._rows *= _STEP_DECAY**count
        self._update_shared_chances()

    def record(self, rows: IntArray, found: FloatArray) -> None:
        """Count N rounds. found: tries and acceptances, [N, 2, C].

        Rounds of the same row decay its earlier counts, and not each other's.
        """
        self._shared *= _SHARED_ROUND_DECAY ** len(rows)
        self._shared += found.sum(axis=0)
        order = rows.argsort(kind="stable")
        ordered = rows[order]
        is_first = np.ones(len(rows), dtype=np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
        starts = is_first.nonzero()[0]
        sizes = np.append(starts[1:], len(rows)) - starts
        decay = _ROUND_DECAY**sizes
        distinct = ordered[starts]
        counts = self._rows[distinct]
        counts *= decay[:, None, None]
        counts += np.add.reduceat(found[order], starts)
        self._rows[distinct] = counts
        self._update_shared_chances()

    def shared_chances(self) -> FloatArray:
        """Return the chances over all requests, [C]."""
        return self._shared_chances

    def chances(self) -> FloatArray:
        """Return the chances of all rows, [R, C]."""
        shared = _SHARED_ROUNDS * self._shared_chances
        found: FloatArray = (shared + self._rows[:, 1]) / (_SHARED_ROUNDS + self._rows[:, 0])
        return found

    def _update_shared_chances(self) -> None:
        tries, accepted = self._shared
        self._shared_chances = (_PRIOR_ROUNDS * self._priors + accepted) / (_PRIOR_ROUNDS + tries)
