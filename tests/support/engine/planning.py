"""Plans rounds without an engine: scripted planners, and sequences for real ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from engine import EngineSamplingParams, Request
from engine.proposers.planner import PlannerByLoad
from engine.scheduler.plan import ScheduledSequence
from engine.scheduler.proposals import Proposal, StepLoad
from engine.scheduler.sequence import SequenceState
from kv_pool import PageTable

Decide = Callable[[Sequence[int]], Sequence[int]]  # from caps to numbers of draft tokens


@dataclass
class ScriptedPlanner:
    """Gives rounds the numbers of draft tokens that `decide` returns, and records its calls.

    decide gets the caps of sequences that are not reproducible; the others have whole blocks.
    """

    decide: Decide = lambda caps: (0,) * len(caps)
    block_size: int = 3
    is_suspended: bool = False
    num_withheld: int = 0
    loads: list[StepLoad] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    def plan(self, load: StepLoad) -> Sequence[Proposal]:
        self.loads.append(load)
        caps = [min(cap, self.block_size) for cap in load.caps]
        is_open = [not seq.is_reproducible for seq in load.seqs]
        numbers = iter(self.decide([cap for cap, o in zip(caps, is_open, strict=True) if o]))
        chosen = [next(numbers) if o else cap for cap, o in zip(caps, is_open, strict=True)]
        return [Proposal(n, reason=None if n else "load") for n in chosen]

    def plan_resumed(self, seq: SequenceState, cap: int) -> Proposal:
        number = min(cap, self.block_size) if seq.is_reproducible else 0
        return Proposal(number, reason=None if number else "load")

    def record(self, scheduled: ScheduledSequence, num_accepted: int) -> None:
        self.rounds.append((scheduled.num_drafts, num_accepted))

    def forget(self, seq: SequenceState) -> None:
        self.forgotten.append(seq.arrival)

    def flush(self) -> None:
        """Do nothing: no texts are kept."""


@contextmanager
def scripted_drafts(decide: Decide, *, block_size: int) -> Iterator[ScriptedPlanner]:
    """Replace the decisions of every planner by load."""
    script = ScriptedPlanner(decide, block_size)
    with (
        patch.object(PlannerByLoad, "plan", lambda self, load: script.plan(load)),
        patch.object(PlannerByLoad, "record", lambda self, *round_: script.record(*round_)),
    ):
        yield script


def sequence(arrival: int, token_ids: Sequence[int] = (1, 2, 3), **params: object) -> SequenceState:
    """Make a running sequence whose prompt is all but the last token."""
    sampling = EngineSamplingParams(max_new_tokens=1 << 20, **params)  # type: ignore[arg-type]
    return SequenceState(
        request=Request(str(arrival), tuple(token_ids[:-1]), sampling),
        arrival=arrival,
        seed=0,
        arrived_at=0.0,
        table=PageTable(4),
        token_ids=list(token_ids),
    )


def unlike_sequences(count: int) -> list[SequenceState]:
    """Make sequences without any repeated token."""
    return [sequence(i, range(100 * i, 100 * i + 5)) for i in range(count)]


def load_of(
    seqs: Sequence[SequenceState], caps: Sequence[int], *, chunk_rows: int = 0, context: int = 0
) -> StepLoad:
    return StepLoad(seqs, caps, chunk_rows, context)


def round_of(seq: SequenceState, proposal: Proposal) -> ScheduledSequence:
    """Make the scheduled round of a proposal."""
    return ScheduledSequence(
        seq=seq,
        start=len(seq.token_ids) - 1,
        stop=len(seq.token_ids),
        num_drafts=proposal.num_tokens,
        samples=True,
        lookup_ids=proposal.lookup_ids,
        match_len=proposal.match_len,
        reason=proposal.reason,
        num_budgeted=proposal.num_budgeted,
    )
