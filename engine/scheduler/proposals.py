"""Defines what a round may verify, and the protocol of what decides it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.api import PlainReason
from engine.scheduler.plan import ScheduledSequence
from engine.scheduler.sequence import SequenceState


class Proposal(NamedTuple):
    """The drafts of one round: those of the draft model, unless a lookup has found some."""

    num_tokens: int
    lookup_ids: tuple[int, ...] = ()  # num_tokens ids; empty: the draft model proposes
    match_len: int = 0  # of a lookup, tokens
    num_budgeted: int | None = None  # see ScheduledSequence
    reason: PlainReason | None = None  # why there are none


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Describes a step before it is decided what its rounds verify."""

    seqs: Sequence[SequenceState]  # in a round, oldest first
    caps: Sequence[int]  # the most drafts that each round may verify; 0 before the last token
    chunk_rows: int = 0  # prompt tokens
    context: int = 0  # tokens before the anchor, mean over all rounds


class ProposalPlanner(Protocol):
    """Decides what each round of a step verifies.

    It may use costs, loads, committed tokens and earlier rounds, but nothing that depends on how
    this round's random numbers fall. For a reproducible sequence it may use that sequence's own
    tokens and rounds alone.
    """

    @property
    def is_suspended(self) -> bool:
        """Return whether no drafts paid at the latest load."""
        ...

    @property
    def num_withheld(self) -> int:
        """Count the draft model's tokens that fitted into rounds and would not have paid."""
        ...

    def plan(self, load: StepLoad) -> Sequence[Proposal]:
        """Return a proposal for each of load.seqs. Called once per step."""
        ...

    def plan_resumed(self, seq: SequenceState, cap: int) -> Proposal:
        """Return the proposal of a sequence that is admitted with a round, after `plan`."""
        ...

    def record(self, scheduled: ScheduledSequence, num_accepted: int) -> None:
        """Record the acceptance of a committed round with a proposal, unless a stop has cut it."""
        ...

    def forget(self, seq: SequenceState) -> None:
        """Drop what is kept for a sequence that has ended."""
        ...

    def flush(self) -> None:
        """Drop the texts of ended sequences that are kept for others."""
        ...
