"""What a step will compute, decided on integers before any tensor exists."""

from dataclasses import dataclass

from engine.api import TokenLogprob
from engine.scheduler.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One sequence's share of a step: which of its tokens go through the target.

        token_ids   0 ... start ........ stop-1 | drafts
                          <- committed, no KV -> <- num_drafts guesses ->

    A prompt chunk and a decode round are the same thing. A share that reaches the end of
    token_ids commits at least one token; only a share that is the anchor alone brings drafts.
    """

    seq: SequenceState
    start: int  # first position to compute; keys and values before it are in the pool
    stop: int  # one past the last committed position to compute
    num_drafts: int  # draft tokens verified behind the anchor
    samples: bool  # whether the share reaches the end of what is committed, and decides a token
    logprob_rows: range = range(0)  # positions that tell the logprob of the prompt token behind

    @property
    def num_committed(self) -> int:
        return self.stop - self.start

    @property
    def num_rows(self) -> int:
        return self.num_committed + self.num_drafts

    @property
    def kv_len(self) -> int:
        """Keys and values to attend to, this step's own included."""
        return self.stop + self.num_drafts

    @property
    def num_logit_rows(self) -> int:
        """Rows of the verify window; logprob_rows come on top."""
        return self.num_drafts + 1 if self.samples else 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The shares of one step, oldest request first."""

    scheduled_seqs: tuple[ScheduledSequence, ...]

    @property
    def drafting(self) -> tuple[ScheduledSequence, ...]:
        return tuple(scheduled for scheduled in self.scheduled_seqs if scheduled.num_drafts > 0)

    @property
    def sampling(self) -> tuple[ScheduledSequence, ...]:
        return tuple(scheduled for scheduled in self.scheduled_seqs if scheduled.samples)

    @property
    def drawing(self) -> tuple[int, ...]:
        """Which of `sampling` draw their tokens, by place; the others take the likeliest."""
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
    """What the target decided for one share, and what it tells.

    new_ids holds the accepted draft tokens and then the bonus token, and nothing for a share that
    does not sample; a stop may still cut it. logprobs has an entry for each of them if asked for;
    prompt_logprobs one for each of the share's logprob_rows.
    """

    scheduled: ScheduledSequence
    new_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
