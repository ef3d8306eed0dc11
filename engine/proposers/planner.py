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
from engine.proposers.choice import Choice, CostTable, Objective, allocate, choose, choose_at
from engine.proposers.fixed_rule import FixedRule, looked_up
from engine.proposers.survival import LONGEST_MATCH, SurvivalTable
from engine.scheduler.plan import ScheduledSequence
from engine.scheduler.proposals import Proposal, StepLoad
from engine.scheduler.sequence import SequenceState

logger = logging.getLogger(__name__)

_CONTEXT_GRAIN = 128  # tokens; contexts are rounded down to multiples of this
_MOST_TABLES = 256  # cached cost tables
# Plain decoding must be faster by this fraction before drafts stop: a smaller gain does not make up
# for the acceptance that is no longer observed.
_PATIENCE = 0.03
_PROBING = 0.01  # the largest fraction of the time that probes take
# With more sequences than this, finished rounds are taken into account, and the price of a row is
# searched, in every fourth step: these take most of the time of a decision.
_FEW = 8
_REVIEW_STEPS = 4

_LOAD = Proposal(0, reason="load")
_LIMIT = Proposal(0, reason="limit")
_NO_PROPOSAL = Proposal(0, reason="no_proposal")


class PlannerByLoad:
    """Gives each round the drafts with the most expected tokens per second of the step."""

    def __init__(
        self,
        *,
        costs: StepCosts,
        rule: FixedRule,
        always_looks_up: bool = False,
        schedules_confidence: bool = False,
    ) -> None:
        """rule: of reproducible sequences. always_looks_up: take lookups at any cost.
        schedules_confidence: draft whole blocks, whose confidences give out the rows of the step.
        """
        self._tracked = TrackedCosts(costs)
        self._rule = rule
        self._lookup = rule.lookup
        self._always_looks_up = always_looks_up
        self.schedules_confidence = schedules_confidence
        self._block = rule.num_draft_tokens
        self._survival = SurvivalTable(
            block=self._block,
            lookup_tokens=rule.lookup.max_tokens if rule.lookup is not None else 0,
        )
        self._width = self._survival.width
        self._proposals = [_LOAD, *(Proposal(n) for n in range(1, self._block + 1))]
        self._confidences: dict[int, FloatArray] = {}  # of the latest block, by arrival
        self._tables: dict[tuple[int, ...], CostTable] = {}
        self._num_steps = 0  # since the latest review
        self._reviewed: Choice | None = None  # found by a whole search in the latest review
        self._num_reviewed = 0  # sequences of that step
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
            if choose(draft, np.zeros_like(draft), table, Objective(count)).num_rows:
                return count
        return 0

    def plan(self, load: StepLoad) -> Sequence[Proposal]:
        """See ProposalPlanner.plan."""
        self._num_steps += 1
        is_review = len(load.seqs) <= _FEW or self._num_steps >= _REVIEW_STEPS
        if is_review:
            self._survival.refresh(self._num_steps)
            self._num_steps = 0
        lookup, row_of = self._lookup, self._survival.row_of
        if lookup is not None:
            lookup.begin_step()
        proposals = [_LIMIT] * len(load.seqs)
        places: list[int] = []  # of the rounds that are chosen by load
        rows: list[int] = []
        caps: list[int] = []
        matches: list[int] = []
        for place, (seq, cap) in enumerate(zip(load.seqs, load.caps, strict=True)):
            match_len = lookup.match_len(seq) if lookup is not None else 0
            if cap == 0:
                continue
            if seq.is_reproducible or (self._always_looks_up and match_len):
                proposals[place] = self._rule.propose(seq, cap)
                continue
            places.append(place)
            rows.append(row_of(seq.arrival))
            caps.append(cap)
            matches.append(match_len)
        if places:
            chosen = self._choose(load, proposals, places, rows, caps, matches, is_review)
            for place, proposal in zip(places, chosen, strict=True):
                proposals[place] = proposal
        return proposals

    def plan_resumed(self, seq: SequenceState, cap: int) -> Proposal:
        """See ProposalPlanner.plan_resumed. The load is allotted by then, so most get none."""
        if seq.is_reproducible:
            return self._rule.propose(seq, cap)
        return _LOAD if cap else _LIMIT

    def record_confidences(
        self, scheduled_seqs: Sequence[ScheduledSequence], confidences: FloatArray
    ) -> None:
        """Take the confidences of the step's blocks, [N, block], once their rounds are over."""
        for scheduled, of_block in zip(scheduled_seqs, confidences, strict=True):
            self._confidences[scheduled.seq.arrival] = of_block

    def record(self, scheduled: ScheduledSequence, num_accepted: int) -> None:
        """See ProposalPlanner.record."""
        arrival = scheduled.seq.arrival
        row, num_drafts = self._survival.row_of(arrival), scheduled.num_drafts
        confidences = self._confidences.pop(arrival, None)
        if confidences is not None and scheduled.num_budgeted is not None:
            self._survival.record_block(row, num_drafts, num_accepted, confidences)
        elif num_drafts:
            self._survival.record(row, scheduled.match_len, num_drafts, num_accepted)

    def forget(self, seq: SequenceState) -> None:
        """See ProposalPlanner.forget."""
        self._rule.forget(seq)
        self._survival.forget(seq.arrival)
        self._confidences.pop(seq.arrival, None)

    def flush(self) -> None:
        """See ProposalPlanner.flush."""
        self._rule.flush()

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

    # -- choosing -----------------------------------------------------------------------------

    def _choose(
        self,
        load: StepLoad,
        proposals: Sequence[Proposal],
        places: Sequence[int],
        rows: Sequence[int],
        caps: Sequence[int],
        matches: Sequence[int],
        is_review: bool,
    ) -> list[Proposal]:
        """Choose the proposals at some places; the other rounds of the step have theirs."""
        draft, lookup = self._chances(rows, caps, matches)
        table, objective = self._objective(load, proposals, len(places))
        choice = self._choice(draft, lookup, table, objective, is_review)
        if load.chunk_rows:  # what drafts add must earn what that time earns without a chunk
            passes = self.costs.pass_table(
                num_sequences=len(proposals),
                num_rows=len(proposals) + sum(p.num_tokens for p in proposals) + load.chunk_rows,
                most_more=len(table.passes) - 1,
                context=load.context,
            )
            table = CostTable(passes, table.drafts)
            choice = choose(
                draft, lookup, table, Objective(objective.base_tokens, earned=choice.rate)
            )
        if self._block or any(matches):
            self.is_suspended = choice.num_rows == 0
        numbers = allocate(choice.chances, choice.num_rows, choice.least)
        probed = None
        if self._block and is_review and not load.chunk_rows:
            probed = self._probe(caps, draft, table, choice, numbers)
        return self._chosen(
            [load.seqs[place] for place in places],
            caps,
            matches,
            choice.is_drafting.tolist(),
            numbers.tolist(),
            probed,
        )

    def _chances(
        self, rows: Sequence[int], caps: Sequence[int], matches: Sequence[int]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the chances of blocks and of lookups, [N, W] each; see `choose`."""
        at = np.array(rows)
        columns = np.array(matches)
        np.minimum(columns, LONGEST_MATCH, out=columns)
        columns += 1
        draft, lookup = self._survival.by_row[at, 0], self._survival.by_row[at, columns]
        if min(caps) < self._width:
            is_open = np.arange(self._width) < np.array(caps)[:, None]
            draft *= is_open
            lookup *= is_open
        return draft, lookup

    def _objective(
        self, load: StepLoad, proposals: Sequence[Proposal], num_open: int
    ) -> tuple[CostTable, Objective]:
        """Return the costs of what is chosen, and what the step expects without it."""
        count = len(proposals)
        num_rows, num_drafting, tokens = count, 0, float(count)
        if num_open < count:
            survival = self._survival.of_all()
            others = [p for p in proposals if p.num_tokens]
            num_rows += sum(p.num_tokens for p in others)
            num_drafting = sum(not p.lookup_ids for p in others)
            tokens += sum(float(survival[: p.num_tokens].sum()) for p in others)
        table = self._table(
            count,
            num_rows=num_rows,
            num_drafting=num_drafting,
            context=load.context // _CONTEXT_GRAIN * _CONTEXT_GRAIN,
            num_open=num_open,
        )
        return table, Objective(tokens, 0.0 if self.is_suspended else _PATIENCE)

    def _choice(
        self,
        draft: FloatArray,
        lookup: FloatArray,
        table: CostTable,
        objective: Objective,
        is_review: bool,
    ) -> Choice:
        """Search the price of a row in a review, and use the price found in steps after it."""
        found = self._reviewed
        if is_review or found is None or self._num_reviewed != len(draft):
            found = self._reviewed = choose(draft, lookup, table, objective)
            self._num_reviewed = len(draft)
            return found
        price = np.inf if found.price is None else found.price
        return choose_at(price, found.rate, draft, lookup, table, objective)

    def _chosen(
        self,
        seqs: Sequence[SequenceState],
        caps: Sequence[int],
        matches: Sequence[int],
        is_drafting: Sequence[bool],
        numbers: Sequence[int],
        probed: int | None,
    ) -> list[Proposal]:
        """Make the proposals of the chosen numbers; the probed sequence has a whole block."""
        found: list[Proposal] = []
        block, withheld = self._block, 0
        without = _LOAD if block else _NO_PROPOSAL
        for i, (cap, match_len, uses_draft, number) in enumerate(
            zip(caps, matches, is_drafting, numbers, strict=True)
        ):
            if i == probed:
                found.append(self._proposals[block])
                continue
            if number == 0:
                withheld += min(cap, block)
                found.append(_LOAD if match_len else without)
            elif not uses_draft:
                assert self._lookup is not None
                found.append(looked_up(self._lookup, seqs[i], number, match_len))
            else:
                withheld += min(cap, block) - number
                found.append(
                    Proposal(min(cap, block), num_budgeted=number)
                    if self.schedules_confidence
                    else self._proposals[number]
                )
        self.num_withheld += withheld
        return found

    def _probe(
        self,
        caps: Sequence[int],
        draft: FloatArray,
        table: CostTable,
        choice: Choice,
        numbers: IntArray,
    ) -> int | None:
        """Choose a sequence that gets a whole block, now and then, while none has one.

        Positions that are not verified yield no acceptance, so drafts that are given up would never
        resume. A probe costs time, and waits until _PROBING of the time adds up to its cost.
        """
        is_drafting, block = choice.is_drafting, self._block
        if (numbers[is_drafting] == block).any():
            return None
        candidates = [i for i, cap in enumerate(caps) if cap >= block]
        if not candidates:
            return None
        at = candidates[self._num_probes % len(candidates)]
        number = int(numbers[at])
        num_drafting = int(np.count_nonzero(is_drafting & (numbers > 0))) + (not is_drafting[at])
        seconds = float(table.passes[choice.num_rows + block - number] + table.drafts[num_drafting])
        gain = float(draft[at, :block].sum() - choice.chances[at, :number].sum())
        self._saved += _PROBING * choice.seconds * (_REVIEW_STEPS if len(caps) > _FEW else 1)
        if self._saved < seconds - (choice.tokens + gain) / choice.rate:
            return None
        self._saved = 0.0
        self._num_probes += 1
        return at

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
