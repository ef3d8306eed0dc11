"""Tracks how many draft tokens earlier rounds accepted, by position in the block."""

# The prior: this chance, weighted as so many rounds.
PRIOR_CHANCE = 0.6
_PRIOR_ROUNDS = 4.0
# Rounds, and steps, after which a count has decayed to about a third. Steps count as well: while
# drafts are suspended there are hardly any rounds, but prompts change.
_MEMORY_ROUNDS = 256.0
_MEMORY_STEPS = 1000.0


class AcceptanceRates:
    """Estimates the chance that a draft token is accepted, by position, over all requests.

    A position counts if its token was verified and all tokens before it were accepted, so rounds
    of any number of drafts count. Old counts decay; without new rounds the chances return to the
    prior.
    """

    def __init__(self, *, num_positions: int) -> None:
        self._tried = [0.0] * num_positions
        self._accepted = [0.0] * num_positions

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """Count a round that verified num_drafts tokens and accepted num_accepted of them."""
        assert 0 <= num_accepted <= num_drafts <= len(self._tried), (num_drafts, num_accepted)
        self._fade(1 - 1 / _MEMORY_ROUNDS)
        for position in range(min(num_accepted + 1, num_drafts)):
            self._tried[position] += 1
            self._accepted[position] += position < num_accepted

    def pass_step(self) -> None:
        """Decay the counts by one step."""
        self._fade(1 - 1 / _MEMORY_STEPS)

    def survival(self) -> tuple[float, ...]:
        """Return of each position the chance that all tokens up to it are accepted. Never rises."""
        chances = []
        chance = 1.0
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            chance *= (_PRIOR_ROUNDS * PRIOR_CHANCE + accepted) / (_PRIOR_ROUNDS + tried)
            chances.append(chance)
        return tuple(chances)

    def _fade(self, factor: float) -> None:
        self._tried = [factor * count for count in self._tried]
        self._accepted = [factor * count for count in self._accepted]
