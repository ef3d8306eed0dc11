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

    def clear(self, row: int) -> None:
        """Let a request begin in a row; rows are made as needed."""
        if row >= len(self._rows):
            more = np.zeros((max(row + 1, 2 * len(self._rows)), *self._rows.shape[1:]))
            more[: len(self._rows)] = self._rows
            self._rows = more
        self._rows[row] = 0.0

    def pass_step(self, rows: IntArray) -> None:
        """Decay the counts by one step, of these rows and of all requests together."""
        self._shared *= _SHARED_STEP_DECAY
        self._rows[rows] *= _STEP_DECAY
        self._update_shared_chances()

    def record(self, rows: IntArray, tries: FloatArray, accepted: FloatArray) -> None:
        """Count a round of each of the N distinct rows. tries, accepted: [N, C]."""
        found = np.stack([tries, accepted], axis=1)
        self._shared *= _SHARED_ROUND_DECAY ** len(rows)
        self._shared += found.sum(axis=0)
        self._rows[rows] = self._rows[rows] * _ROUND_DECAY + found
        self._update_shared_chances()

    def shared_chances(self) -> FloatArray:
        """Return the chances over all requests, [C]."""
        return self._shared_chances

    def chances(self, rows: IntArray) -> FloatArray:
        """Return the chances of N rows, [N, C]."""
        counts = self._rows[rows]
        shared = _SHARED_ROUNDS * self._shared_chances
        found: FloatArray = (shared + counts[:, 1]) / (_SHARED_ROUNDS + counts[:, 0])
        return found

    def _update_shared_chances(self) -> None:
        tries, accepted = self._shared
        self._shared_chances = (_PRIOR_ROUNDS * self._priors + accepted) / (_PRIOR_ROUNDS + tries)
