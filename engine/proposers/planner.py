"""Plans what rounds verify by costs, load and earlier acceptance of each request.

All of it is known before the rounds' random numbers are drawn, so the output keeps the target's
distribution. This module uses no tensors and no clock. See
docs/decisions/0018-every-request-gets-the-drafts-that-pay-for-it.md.
"""

import logging
from collections.abc import Sequence

import numpy as np

from engine.arrays import IntArray
from engine.draft_length.cost_model import FloatArray, StepCosts
from engine.draft_length.cost_tracking import StepTimes, TrackedCosts
from engine.proposers.acceptance import AcceptanceTable
from engine.proposers.choice import BoolArray, Choice, CostTable, allocate, choose
from engine.proposers.fixed_rule import FixedRule, looked_up
from engine.scheduler.plan import ScheduledSequence
from engine.scheduler.proposals import Proposal, StepLoad
from engine.scheduler.sequence import SequenceState

logger = logging.getLogger(__name__)

PRIOR_CHANCE = 0.6  # of a draft token, given that those before it are accepted
_CONTEXT_GRAIN = 128  # tokens; contexts are rounded down to multiples of this
_MOST_TABLES = 256  # cached cost tables
# Plain decoding must be faster by this fraction before drafts stop: a smaller gain does not make up
# for the acceptance that is no longer observed.
_PATIENCE = 0.03
_PROBING = 0.01  # the largest fraction of the time that probes take

# A lookup's token counts for the length of the match before it: 1 to 2, 3, 4 to 5, 6 to 8, more.
_CLASS_BY_LENGTH = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 4])
_LOOKUP_PRIORS = (0.45, 0.55, 0.65, 0.75, 0.9)  # by class


class PlannerByLoad:
    """Gives each round the drafts with the most expected tokens per second of the step."""

    def __init__(self, *, costs: StepCosts, rule: FixedRule, always_looks_up: bool = False) -> None:
        """rule: of reproducible sequences. always_looks_up: take lookups at any cost."""
        self._tracked = TrackedCosts(costs)
        self._rule = rule
        self._lookup = rule.lookup
        self._always_looks_up = always_looks_up
        self._block = rule.num_draft_tokens
        self._lookup_tokens = rule.lookup.max_tokens if rule.lookup is not None else 0
        self._width = max(self._block, self._lookup_tokens, 1)
        self._of_draft = AcceptanceTable((PRIOR_CHANCE,) * max(1, self._block))
        self._of_lookup = AcceptanceTable(_LOOKUP_PRIORS)
        self._rows: dict[int, int] = {}  # by arrival
        self._free: list[int] = []
        self._rounds: list[
            tuple[int, int, int, int]
        ] = []  # row, match (0: draft), drafts, accepted
        self._tables: dict[tuple[int, ...], CostTable] = {}
        self._saved = 0.0  # seconds saved up for the next probe
        self._num_probes = 0
        self._has_logged = False  # that costs were measured too high
        self.is_suspended = False
        self.num_withheld = 0

    @property
    def costs(self) -> StepCosts:
        return self._tracked.costs

    def most_sequences(self, chance: float, *, max_running: int) -> int:
        """Return the most sequences at which blocks pay, if each token is accepted by this chance.

        All of them are in rounds of short contexts, and none is near its end or has a match.
        """
        survival = np.cumprod(np.full(max(1, self._block), chance))
        for count in range(max_running, 0, -1):
            table = self._table(count, num_rows=count, num_drafting=0, context=0, num_open=count)
            draft = np.broadcast_to(survival, (count, len(survival)))
            if choose(draft, np.zeros_like(draft), table, base_tokens=count).num_rows:
                return count
        return 0

    def plan(self, load: StepLoad) -> Sequence[Proposal]:
        """See ProposalPlanner.plan."""
        self._count_rounds()
        if self._lookup is not None:
            self._lookup.begin_step()
        proposals: list[Proposal] = []
        places, caps, matches = [], [], []  # of the rounds that are chosen by load
        for seq, cap in zip(load.seqs, load.caps, strict=True):
            match_len = self._lookup.match_len(seq) if self._lookup is not None else 0
            if cap == 0 or seq.is_reproducible or (self._always_looks_up and match_len):
                proposals.append(self._rule.propose(seq, cap))
                continue
            places.append(len(proposals))
            caps.append(cap)
            matches.append(match_len)
            proposals.append(Proposal(0))
        if not places:
            return proposals
        seqs = [load.seqs[place] for place in places]
        chosen = self._choose(load, proposals, seqs, np.array(caps), np.array(matches))
        for place, proposal in zip(places, chosen, strict=True):
            proposals[place] = proposal
        return proposals

    def plan_resumed(self, seq: SequenceState, cap: int) -> Proposal:
        """See ProposalPlanner.plan_resumed. The load is allotted by then, so most get none."""
        if seq.is_reproducible:
            return self._rule.propose(seq, cap)
        return Proposal(0, reason="load" if cap else "limit")

    def record(self, scheduled: ScheduledSequence, num_accepted: int) -> None:
        """See ProposalPlanner.record."""
        row = self._row_of(scheduled.seq)
        self._rounds.append((row, scheduled.match_len, scheduled.num_drafts, num_accepted))

    def forget(self, seq: SequenceState) -> None:
        """See ProposalPlanner.forget."""
        self._rule.forget(seq)
        row = self._rows.pop(seq.arrival, None)
        if row is not None:
            self._free.append(row)

    def record_times(self, times: StepTimes) -> None:
        """Take a finished step's times into account."""
        if not self._tracked.record(times):
            return
        self._tables.clear()
        if not self._has_logged:
            self._has_logged = True
            logger.info(
                "draft budget: steps of %d rows take less time than measured at start (was the "
                "machine busy?); costs are lowered to the steps' times from now on",
                times.num_rows,
            )

    # -- acceptance ---------------------------------------------------------------------------

    def _row_of(self, seq: SequenceState) -> int:
        row = self._rows.get(seq.arrival)
        if row is None:
            row = self._free.pop() if self._free else len(self._rows)
            self._rows[seq.arrival] = row
            self._of_draft.clear(row)
            self._of_lookup.clear(row)
        return row

    def _count_rounds(self) -> None:
        """Count the rounds since the last step."""
        if not self._rounds:
            return
        rounds = np.array(self._rounds)
        self._rounds.clear()
        is_lookup = rounds[:, 1] > 0
        if not is_lookup.all():
            rows, _, drafts, accepted = rounds[~is_lookup].T
            positions = np.arange(max(1, self._block))
            tries = positions < np.minimum(accepted + 1, drafts)[:, None]
            hits = positions < accepted[:, None]
            self._of_draft.record(rows, tries.astype(float), hits.astype(float))
        if is_lookup.any():
            rows, matches, drafts, accepted = rounds[is_lookup].T
            positions = np.arange(self._lookup_tokens)
            classes = _classes(matches, self._lookup_tokens)
            is_tried = positions < np.minimum(accepted + 1, drafts)[:, None]
            is_hit = positions < accepted[:, None]
            columns = range(len(_LOOKUP_PRIORS))
            self._of_lookup.record(
                rows,
                np.stack([((classes == c) & is_tried).sum(axis=1) for c in columns], axis=1),
                np.stack([((classes == c) & is_hit).sum(axis=1) for c in columns], axis=1),
            )

    def _chances(
        self, rows: IntArray, caps: IntArray, matches: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the chances of blocks and of lookups, [N, W] each; see `choose`."""
        is_open = np.arange(self._width) < caps[:, None]
        draft, lookup = np.zeros(is_open.shape), np.zeros(is_open.shape)
        if self._block:
            draft[:, : self._block] = np.cumprod(self._of_draft.chances(rows), axis=1)
            draft *= is_open
        count = self._lookup_tokens
        if count and matches.any():
            by_class = self._of_lookup.chances(rows)
            found = np.take_along_axis(by_class, _classes(matches, count), axis=1)
            lookup[:, :count] = np.cumprod(found, axis=1)
            lookup *= is_open & (matches > 0)[:, None]
        return draft, lookup

    # -- choosing -----------------------------------------------------------------------------

    def _choose(
        self,
        load: StepLoad,
        proposals: Sequence[Proposal],
        seqs: Sequence[SequenceState],
        caps: IntArray,
        matches: IntArray,
    ) -> list[Proposal]:
        """Choose the proposals of seqs; the other rounds of the step have theirs."""
        rows = np.array([self._row_of(seq) for seq in seqs])
        self._of_draft.pass_step(rows)
        self._of_lookup.pass_step(rows)
        draft, lookup = self._chances(rows, caps, matches)
        others = [p for p in proposals if p.num_tokens]
        survival = np.cumprod(self._of_draft.shared_chances())
        num_rows = len(proposals) + sum(p.num_tokens for p in others)
        table = self._table(
            len(proposals),
            num_rows=num_rows,
            num_drafting=sum(not p.lookup_ids for p in others),
            context=load.context // _CONTEXT_GRAIN * _CONTEXT_GRAIN,
            num_open=len(seqs),
        )
        base_tokens = len(proposals) + sum(float(survival[: p.num_tokens].sum()) for p in others)
        patience = 0.0 if self.is_suspended else _PATIENCE
        choice = choose(draft, lookup, table, base_tokens=base_tokens, patience=patience)
        if load.chunk_rows:  # what drafts add must earn what that time earns without a chunk
            passes = self.costs.pass_table(
                num_sequences=len(proposals),
                num_rows=num_rows + load.chunk_rows,
                most_more=len(table.passes) - 1,
                context=load.context,
            )
            choice = choose(
                draft,
                lookup,
                CostTable(passes, table.drafts),
                base_tokens=base_tokens,
                earned=choice.rate,
            )
        if draft.any() or lookup.any():
            self.is_suspended = choice.num_rows == 0
        numbers = allocate(np.where(choice.is_drafting[:, None], draft, lookup), choice.num_rows)
        is_drafting = choice.is_drafting
        if self._block and not load.chunk_rows:
            self._probe(caps, draft, lookup, table, choice, numbers, is_drafting)
        if self._block:
            most = np.minimum(caps, self._block)
            self.num_withheld += int((most - numbers)[is_drafting | (numbers == 0)].sum())
        return [
            self._proposal(seq, number, match_len, uses_draft)
            for seq, number, match_len, uses_draft in zip(
                seqs, numbers.tolist(), matches.tolist(), is_drafting.tolist(), strict=True
            )
        ]

    def _proposal(
        self, seq: SequenceState, number: int, match_len: int, uses_draft: bool
    ) -> Proposal:
        if number == 0:
            has_none = not self._block and match_len == 0
            return Proposal(0, reason="no_proposal" if has_none else "load")
        if uses_draft:
            return Proposal(number)
        assert self._lookup is not None
        return looked_up(self._lookup, seq, number, match_len)

    def _probe(
        self,
        caps: IntArray,
        draft: FloatArray,
        lookup: FloatArray,
        table: CostTable,
        choice: Choice,
        numbers: IntArray,
        is_drafting: BoolArray,
    ) -> None:
        """Give one sequence a whole block now and then, while none has one; change the arguments.

        Positions that are not verified yield no acceptance, so drafts that are given up would never
        resume. A probe costs time, and waits until _PROBING of the time adds up to its cost.
        """
        if (numbers[is_drafting] == self._block).any():
            return
        candidates = np.flatnonzero(caps >= self._block)
        if not len(candidates):
            return
        at = int(candidates[self._num_probes % len(candidates)])
        rows = choice.num_rows + self._block - int(numbers[at])
        num_drafting = int(np.count_nonzero(is_drafting & (numbers > 0))) + (not is_drafting[at])
        seconds = float(table.passes[rows] + table.drafts[num_drafting])
        lost = (draft if is_drafting[at] else lookup)[at, : numbers[at]].sum()
        tokens = choice.tokens + float(draft[at].sum() - lost)
        self._saved += _PROBING * choice.seconds
        if self._saved < seconds - tokens / choice.rate:
            return
        self._saved = 0.0
        self._num_probes += 1
        is_drafting[at], numbers[at] = True, self._block

    def _table(
        self, num_sequences: int, *, num_rows: int, num_drafting: int, context: int, num_open: int
    ) -> CostTable:
        key = (num_sequences, num_rows, num_drafting, context, num_open)
        found = self._tables.get(key)
        if found is None:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            found = self._tables[key] = CostTable(
                self.costs.pass_table(
                    num_sequences=num_sequences,
                    num_rows=num_rows,
                    most_more=num_open * self._width,
                    context=context,
                ),
                self.costs.draft_table(
                    num_drafting=num_drafting, most_more=num_open, context=context
                ),
            )
        return found


def _classes(matches: IntArray, count: int) -> IntArray:
    """Return the class of each of `count` tokens after matches of N lengths, [N, count]."""
    lengths = matches[:, None] + np.arange(count)
    found: IntArray = _CLASS_BY_LENGTH[np.minimum(lengths, len(_CLASS_BY_LENGTH) - 1)]
    return found
