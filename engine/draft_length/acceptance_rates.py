"""How far blocks have stood in earlier rounds: what the draft budget expects of the next ones."""

# Before anything is known: a chance of this, as if so many rounds had shown it.
PRIOR_CHANCE = 0.6
_PRIOR_ROUNDS = 4.0
# Rounds, and steps, after which what was seen counts for a third. Steps as well, for while
# nothing drafts there are hardly any rounds, and prompts change all the same.
_MEMORY_ROUNDS = 256.0
_MEMORY_STEPS = 1000.0


class AcceptanceRates:
    """Chances that a draft token stands, by its position in the block, over all requests.

    Counted is a position whose token was verified while all before it stood, so that rounds of
    any number of drafts tell what they can. Old counts fade; without news the chances go back to
    the prior.
    """

    def __init__(self, *, num_positions: int) -> None:
        self._tried = [0.0] * num_positions
        self._stood = [0.0] * num_positions

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """A round that verified num_drafts tokens, of which num_accepted stood."""
        assert 0 <= num_accepted <= num_drafts <= len(self._tried), (num_drafts, num_accepted)
        self._fade(1 - 1 / _MEMORY_ROUNDS)
        for position in range(min(num_accepted + 1, num_drafts)):
            self._tried[position] += 1
            self._stood[position] += position < num_accepted

    def pass_step(self) -> None:
        """A step went by."""
        self._fade(1 - 1 / _MEMORY_STEPS)

    def survival(self) -> tuple[float, ...]:
        """Of each position: the chance that a block stands up to it. Never rising."""
        chances = []
        chance = 1.0
        for tried, stood in zip(self._tried, self._stood, strict=True):
            chance *= (_PRIOR_ROUNDS * PRIOR_CHANCE + stood) / (_PRIOR_ROUNDS + tried)
            chances.append(chance)
        return tuple(chances)

    def _fade(self, factor: float) -> None:
        self._tried = [factor * count for count in self._tried]
        self._stood = [factor * count for count in self._stood]
