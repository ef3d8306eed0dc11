"""Estimates for each running request how far its proposals are accepted."""

import numpy as np

from engine.draft_length.cost_model import FloatArray
from engine.proposers.acceptance import AcceptanceTable

PRIOR_CHANCE = 0.6  # of a draft token, given that those before it are accepted
# A lookup's token counts for the length of the match before it: 1 to 2, 3, 4 to 5, 6 to 8, more.
_CLASS_BY_LENGTH = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 4])
_LOOKUP_PRIORS = (0.45, 0.55, 0.65, 0.75, 0.9)  # by class
LONGEST_MATCH = len(_CLASS_BY_LENGTH) - 1  # tokens; longer ones count alike

_Outcome = tuple[int, int, int]  # match (0: a block), draft tokens, accepted ones


class SurvivalTable:
    """Keeps the chances of every request's draft tokens: that each and all before it are accepted.

    Rounds are recorded as they end, and change the chances at the next `refresh`. So chances depend
    on finished rounds alone.
    """

    def __init__(self, *, block: int, lookup_tokens: int) -> None:
        """block, lookup_tokens: the most tokens of a block and of a lookup; 0 without."""
        self.width = max(block, lookup_tokens, 1)
        self._block, self._lookup_tokens = block, lookup_tokens
        self._table = AcceptanceTable((*(PRIOR_CHANCE,) * block, *_LOOKUP_PRIORS))
        lengths = np.arange(LONGEST_MATCH + 1)[:, None] + np.arange(lookup_tokens)
        self._columns = block + _CLASS_BY_LENGTH[np.minimum(lengths, LONGEST_MATCH)]
        self._places: dict[_Outcome, int] = {}  # in _outcomes
        self._outcomes = np.zeros((0, 2, block + len(_LOOKUP_PRIORS)))
        self._ended: list[tuple[int, int]] = []  # row and place of its outcome
        self._guessed: list[tuple[int, int, int, FloatArray]] = []  # see record_block
        self._rows: dict[int, int] = {}  # by arrival
        self._free: list[int] = []
        self._refresh_rows()

    def row_of(self, arrival: int) -> int:
        """Return a request's row, and make one for a new request."""
        row = self._rows.get(arrival)
        if row is None:
            if self._ended or self._guessed:
                self.refresh(0)  # the row may have been that of a request whose rounds are recorded
            row = self._free.pop() if self._free else len(self._rows)
            self._rows[arrival] = row
            self._table.clear(row)
            if row >= len(self.by_row):
                self._refresh_rows()
            self.by_row[row] = self._of_new
        return row

    def forget(self, arrival: int) -> None:
        row = self._rows.pop(arrival, None)
        if row is not None:
            self._free.append(row)

    def record(self, row: int, match_len: int, num_drafts: int, num_accepted: int) -> None:
        """Record a round. match_len: of a lookup, 0 for a block."""
        outcome = min(match_len, LONGEST_MATCH), num_drafts, num_accepted
        place = self._places.get(outcome)
        if place is None:
            place = self._places[outcome] = len(self._outcomes)
            self._outcomes = np.concatenate([self._outcomes, self._counts(outcome)[None]])
        self._ended.append((row, place))

    def record_block(
        self, row: int, num_drafts: int, num_accepted: int, confidences: FloatArray
    ) -> None:
        """Record a round of a block, by its confidences where it was not verified, [block].

        Tokens after the verified ones count as if they were accepted with their confidences. They
        were left out because they seemed unlikely, so without them chances would be too high.
        """
        self._guessed.append((row, num_drafts, num_accepted, confidences))

    def refresh(self, num_steps: int) -> None:
        """Take the recorded rounds of so many steps into account."""
        self._table.pass_steps(num_steps)
        if self._ended:
            rows, places = np.array(self._ended).T
            self._table.record(rows, self._outcomes[places])
            self._ended.clear()
        if self._guessed:
            self._record_guessed()
        self._refresh_rows()

    def of_all(self) -> FloatArray:
        """Return the chances of a block's tokens over all requests, [block]."""
        found: FloatArray = self._of_new[0, : self._block]
        return found

    def _refresh_rows(self) -> None:
        """Compute the chances of all rows, [R, 2 + LONGEST_MATCH, width].

        by_row[r, 0] are those of a block, by_row[r, 1 + m] those of a lookup after m tokens.
        """
        chances = np.concatenate([self._table.chances(), self._table.shared_chances()[None]])
        survival = np.zeros((len(chances), 2 + LONGEST_MATCH, self.width))
        np.cumprod(chances[:, : self._block], axis=1, out=survival[:, 0, : self._block])
        if self._lookup_tokens:
            of_lookup = survival[:, 2:, : self._lookup_tokens]
            np.cumprod(chances[:, self._columns[1:]], axis=2, out=of_lookup)
        self.by_row, self._of_new = survival[:-1], survival[-1]

    def _counts(self, outcome: _Outcome) -> FloatArray:
        """Count a round's tries and acceptances by column, [2, C]."""
        match_len, num_drafts, num_accepted = outcome
        counts = np.zeros(self._outcomes.shape[1:])
        columns = self._columns[match_len] if match_len else np.arange(self._block)
        for position in range(min(num_accepted + 1, num_drafts)):
            counts[:, columns[position]] += 1, position < num_accepted
        return counts

    def _record_guessed(self) -> None:
        rows, drafts, accepted = np.array([ended[:3] for ended in self._guessed]).T
        confidences = np.array([ended[3] for ended in self._guessed])
        self._guessed.clear()
        positions = np.arange(self._block)
        is_verified = positions < drafts[:, None]
        is_guessed = ~is_verified & (accepted == drafts)[:, None]
        tries = (is_verified & (positions <= accepted[:, None])).astype(float)
        hits = (is_verified & (positions < accepted[:, None])).astype(float)
        guesses = np.where(is_guessed, confidences[:, : self._block], 1.0)
        reach = np.cumprod(guesses, axis=1)
        hits += np.where(is_guessed, reach, 0.0)
        tries += np.where(is_guessed, reach / np.maximum(guesses, 1e-9), 0.0)
        found = np.zeros((len(rows), *self._outcomes.shape[1:]))
        found[:, 0, : self._block], found[:, 1, : self._block] = tries, hits
        self._table.record(rows, found)
