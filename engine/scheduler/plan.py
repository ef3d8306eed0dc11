"""Describes what a step computes, in integers, before any tensor exists."""

from dataclasses import dataclass, replace

from engine.api import PlainReason, TokenLogprob, TokenSource
from engine.scheduler.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Selects the tokens of one sequence that a step computes.

        token_ids   0 ... start ........ stop-1 | drafts
                          <- committed, no KV -> <---- num_drafts ---->

    Prompt chunks and decode rounds have the same form. A sequence scheduled to the end of
    token_ids commits at least one token; only one whose sole token is the anchor has drafts. They
    come from the draft model, or from a lookup, whose token ids are known here.
    """

    seq: SequenceState
    start: int  # first position to compute; keys and values before it are in the pool
    stop: int  # one past the last committed position to compute
    num_drafts: int  # draft tokens verified after the anchor
    samples: bool  # whether stop is the end of token_ids, so that a token is committed
    logprob_rows: range = range(0)  # positions whose next prompt token needs a logprob
    lookup_ids: tuple[int, ...] = ()  # num_drafts token ids; empty: the draft model proposes
    match_len: int = 0  # tokens of the repeated suffix that lookup_ids followed
    reason: PlainReason | None = None  # why a decode round verifies no draft
    # Drafts that it adds to a total, which the confidences of all such blocks give out; None: it
    # verifies num_drafts.
    num_budgeted: int | None = None

    @property
    def source(self) -> TokenSource:
        """Return what proposed the drafts; "target" without any."""
        if self.num_drafts == 0:
            return "target"
        return "lookup" if self.lookup_ids else "draft"

    @property
    def is_drafting(self) -> bool:
        """Return whether the draft model proposes, even if no token of its block is verified."""
        return not self.lookup_ids and (self.num_drafts > 0 or self.num_budgeted is not None)

    @property
    def is_round(self) -> bool:
        """Return whether this is a decode round; otherwise it is a prompt chunk."""
        return self.samples and self.start >= self.seq.num_prompt

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

    def cut(self, num_drafts: int, reason: PlainReason) -> "ScheduledSequence":
        """Keep the first num_drafts drafts; reason: why none is left."""
        if num_drafts >= self.num_drafts:
            return self
        return replace(
            self,
            num_drafts=num_drafts,
            lookup_ids=self.lookup_ids[:num_drafts],
            reason=None if num_drafts > 0 else reason,
        )


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Lists the scheduled sequences of one step, running ones first, each by place."""

    scheduled_seqs: tuple[ScheduledSequence, ...]

    @property
    def drafting(self) -> tuple[ScheduledSequence, ...]:
        """Return the sequences that the draft model proposes tokens for."""
        return tuple(s for s in self.scheduled_seqs if s.is_drafting)

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
