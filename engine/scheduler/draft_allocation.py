"""Defines what the scheduler passes to a draft budget, and the budget's protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step computes besides the drafts that are to be decided on.

    caps    draft tokens that each sequence could verify, of those whose number is open, oldest
            first
    fixed   draft tokens of the other sequences that are in a round: theirs are no matter of load
    """

    caps: tuple[int, ...]
    fixed: tuple[int, ...] = ()
    chunk_rows: int = 0  # prompt tokens
    context: int = 0  # tokens before the anchor, the mean over all rounds

    @property
    def num_sequences(self) -> int:
        return len(self.caps) + len(self.fixed)

    @property
    def num_rows(self) -> int:
        """Without the open drafts and the chunk."""
        return self.num_sequences + sum(self.fixed)

    @property
    def num_drafting(self) -> int:
        return sum(number > 0 for number in self.fixed)


class DraftBudget(Protocol):
    """Decides how many draft tokens each round of a step may verify."""

    @property
    def is_suspended(self) -> bool:
        """Whether drafts did not pay at the latest load."""
        ...

    def allot(self, load: StepLoad) -> Sequence[int]:
        """A number for each of load.caps, 0 to that cap. Called once a step."""
        ...

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """What became of a round; never of the one that is being decided."""
        ...
