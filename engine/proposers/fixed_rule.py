"""Proposes by a rule that depends on the sequence's own text alone."""

from collections.abc import Sequence

from engine.proposers.lookup import LookupProposer
from engine.scheduler.plan import ScheduledSequence
from engine.scheduler.proposals import Proposal, StepLoad
from engine.scheduler.sequence import SequenceState

# Tokens of a match from which a lookup is taken instead of a draft block: a shorter one is
# accepted less far, on average over the bench prompts.
LONG_MATCH = 4


class FixedRule:
    """Takes a lookup with a long match, otherwise a whole block of the draft model."""

    def __init__(
        self, *, num_draft_tokens: int, lookup: LookupProposer | None, always_looks_up: bool = False
    ) -> None:
        """num_draft_tokens: of a whole block; 0 without a draft model.
        always_looks_up: take a lookup with any match.
        """
        self.num_draft_tokens = num_draft_tokens
        self.lookup = lookup
        self._long = 0
        if lookup is not None:
            self._long = lookup.min_match
            if num_draft_tokens > 0 and not always_looks_up:
                self._long = max(LONG_MATCH, lookup.min_match)

    def propose(self, seq: SequenceState, cap: int) -> Proposal:
        """Return the sequence's proposal of at most `cap` tokens."""
        match_len = self.lookup.match_len(seq) if self.lookup is not None else 0
        if cap == 0:
            return Proposal(0, reason="limit")
        if self.lookup is not None and match_len >= self._long:
            return looked_up(self.lookup, seq, min(cap, self.lookup.max_tokens), match_len)
        num_tokens = min(cap, self.num_draft_tokens)
        return Proposal(num_tokens, reason=None if num_tokens else "no_proposal")

    def forget(self, seq: SequenceState) -> None:
        if self.lookup is not None:
            self.lookup.forget(seq)

    def flush(self) -> None:
        if self.lookup is not None:
            self.lookup.flush()


def looked_up(
    lookup: LookupProposer, seq: SequenceState, num_tokens: int, match_len: int
) -> Proposal:
    """Return a proposal of the tokens that followed the sequence's match."""
    lookup_ids = lookup.continuation(seq, num_tokens)
    return Proposal(len(lookup_ids), lookup_ids, match_len)


class FixedPlanner:
    """Applies the fixed rule to every sequence, at any load."""

    is_suspended = False
    num_withheld = 0

    def __init__(self, rule: FixedRule) -> None:
        self._rule = rule

    def plan(self, load: StepLoad) -> Sequence[Proposal]:
        """See ProposalPlanner.plan."""
        if self._rule.lookup is not None:
            self._rule.lookup.begin_step()
        return [self._rule.propose(seq, cap) for seq, cap in zip(load.seqs, load.caps, strict=True)]

    def plan_resumed(self, seq: SequenceState, cap: int) -> Proposal:
        """See ProposalPlanner.plan_resumed."""
        return self._rule.propose(seq, cap)

    def record(self, scheduled: ScheduledSequence, num_accepted: int) -> None:
        """Do nothing: the rule does not depend on acceptance."""

    def forget(self, seq: SequenceState) -> None:
        """See ProposalPlanner.forget."""
        self._rule.forget(seq)

    def flush(self) -> None:
        """See ProposalPlanner.flush."""
        self._rule.flush()
