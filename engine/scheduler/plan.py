"""Describes what a step computes, in integers, before any tensor exists."""

from dataclasses import dataclass

from engine.api import TokenLogprob
from engine.scheduler.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Selects the tokens of one sequence that a step computes.

        token_ids   0 ... start ........ stop-1 | drafts
                          <- committed, no KV -> <---- num_drafts ---->

    Prompt chunks and decode rounds have the same form. A sequence scheduled to the end of
    token_ids commits at least one token; only one whose sole token is the anchor drafts.
    """

    seq: SequenceState
    start: int  # first position to compute; keys and values before it are in the pool
    stop: int  # one past the last committed position to compute
    num_drafts: int  # draft tokens verified after the anchor
    samples: bool  # whether stop is the end of token_ids, so that a token is committed
    logprob_rows: range = range(0)  # positions whose next prompt token needs a logprob

    @property
    def num_committed(self) -> int:
        return self.stop - self.start

    @property
    def num_rows(self) -> int:
        return self.num_committed + self.num_drafts

    @property
    def kv_len(self) -> int:
        """Return the number of keys and values to attend to, this step's included."""
        return self.stop + self.num_drafts

    @property
    def num_logit_rows(self) -> int:
        """Return the rows of the verify window, without logprob_rows."""
        return self.num_drafts + 1 if self.samples else 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Lists the scheduled sequences of one step, running ones first, each by arrival."""

    scheduled_seqs: tuple[ScheduledSequence, ...]

    @property
    def drafting(self) -> tuple[ScheduledSequence, ...]:
        return tuple(scheduled for scheduled in self.scheduled_seqs if scheduled.num_drafts > 0)

    @property
    def sampling(self) -> tuple[ScheduledSequence, ...]:
        return tuple(scheduled for scheduled in self.scheduled_seqs if scheduled.samples)

    @property
    def drawing(self) -> tuple[int, ...]:
        """Return the indices in `sampling` of sequences that sample; the others are greedy."""
        greedy = (scheduled.seq.request.params.is_greedy for scheduled in self.sampling)
        return tuple(place for place, is_greedy in enumerate(greedy) if not is_greedy)

    @property
    def num_rows(self) -> int:
        return sum(scheduled.num_rows for scheduled in self.scheduled_seqs)

    def without(self, request_id: str) -> "StepPlan":
        """Return the plan of the other sequences."""
        return StepPlan(
            tuple(s for s in self.scheduled_seqs if s.seq.request.request_id != request_id)
        )

    def __bool__(self) -> bool:
        return bool(self.scheduled_seqs)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Holds the new tokens and logprobs of one scheduled sequence.

    new_ids: the accepted draft tokens and the bonus token, before the stop cut; empty without
    sampling. logprobs: an entry for each of them, if requested. prompt_logprobs: an entry for each
    of logprob_rows.
    """

    scheduled: ScheduledSequence
    new_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
