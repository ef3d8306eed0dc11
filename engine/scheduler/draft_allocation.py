"""Defines the draft budget's protocol and the load that the scheduler passes to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Describes a step's load without the draft tokens that the budget allots.

    caps    most draft tokens of each sequence whose number is open, oldest first
    fixed   draft tokens of other sequences in a round, which do not depend on load
    """

    caps: tuple[int, ...]
    fixed: tuple[int, ...] = ()
    chunk_rows: int = 0  # prompt tokens
    context: int = 0  # tokens before the anchor, mean over all rounds

    @property
    def num_sequences(self) -> int:
        return len(self.caps) + len(self.fixed)

    @property
    def num_rows(self) -> int:
        """Return the rows without open drafts and the prompt chunk."""
        return self.num_sequences + sum(self.fixed)

    @property
    def num_drafting(self) -> int:
        return sum(number > 0 for number in self.fixed)


class DraftBudget(Protocol):
    """Decides how many draft tokens each round of a step may verify."""

    @property
    def is_suspended(self) -> bool:
        """Return whether drafts were too expensive at the latest load."""
        ...

    def allot(self, load: StepLoad) -> Sequence[int]:
        """Return a number for each of load.caps, 0 to that cap. Called once per step."""
        ...

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """Record the acceptance of a committed round."""
        ...
