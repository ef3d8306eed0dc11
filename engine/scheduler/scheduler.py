"""Plans steps: admission, page reservation, preemption. Integers only, no tensors.

The scheduler is the only writer of SequenceState. There is no prefill phase and no decode
phase: each step computes committed tokens that have no keys and values yet.
"""

import secrets
import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.api import Finish, FinishReason, Request, Round, TokenEvent
from engine.errors import EngineBusy, RequestRejected
from engine.scheduler.plan import RoundResult, ScheduledSequence, StepPlan
from engine.scheduler.proposals import Proposal, ProposalPlanner, StepLoad
from engine.scheduler.request_fault import RequestFault, attribute_faults
from engine.scheduler.request_limits import RequestLimits, check_request
from engine.scheduler.request_order import RequestOrder
from engine.scheduler.sequence import SequenceState
from engine.scheduler.stop_check import stop_after, stop_ids
from kv_pool import OutOfPages, PageManager, PageTable

# Output tokens that a sequence must still be allowed so that a next round drafts at all: two are
# the bonus tokens of this round and of the next one.
_LEAST_AHEAD = 3


@dataclass(frozen=True, slots=True)
class Committed:
    """Describes what a step committed for one scheduled sequence, after the stop cut."""

    scheduled: ScheduledSequence
    num_rows: int  # rows whose keys and values are valid now
    event: TokenEvent | None
    fault: RequestFault | None = None  # ended the request with FinishReason.ERROR


@dataclass(slots=True)
class SchedulerCounters:
    """Counts since the start."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_capped_rounds: int = 0  # whose requests allow fewer draft tokens than the engine


class Scheduler:
    """Plans steps and commits their results.

    num_slots: scratch slots that a round reserves for the draft model's block.
    num_draft_tokens: the most that a round verifies, of any source.
    """

    def __init__(
        self,
        *,
        pages: PageManager,
        limits: RequestLimits,
        eos_ids: frozenset[int],
        num_slots: int,
        num_draft_tokens: int,
        planner: ProposalPlanner,
        max_running: int,
        max_queued: int,
        prefill_chunk_tokens: int,
        order: RequestOrder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pages = pages
        self._limits = limits
        self._eos_ids = eos_ids
        self._num_slots = num_slots
        self._num_draft_tokens = num_draft_tokens
        self._planner = planner
        self._max_running = max_running
        self._fits_memory = max_running  # running sequences; lower after a step ran out of memory
        self._max_queued = max_queued
        self._chunk = prefill_chunk_tokens
        self._order = order
        self._clock = clock
        self._arrivals = 0
        self._waiting: list[SequenceState] = []  # by place
        self._running: list[SequenceState] = []  # by place
        self._finished: list[SequenceState] = []  # since plan(); release() takes their pages
        # The head of the queue that did not fit, with pages published and available then.
        self._blocked: tuple[SequenceState, int, int] | None = None
        self.counters = SchedulerCounters()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def is_suspended(self) -> bool:
        """Return whether drafts are withheld at the load of the latest rounds."""
        return self._planner.is_suspended

    @property
    def num_withheld_drafts(self) -> int:
        """Count the draft model's tokens that fitted into rounds and would not have paid."""
        return self._planner.num_withheld

    # -- requests in and out ------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRejected or EngineBusy, and changes nothing then."""
        check_request(request, self._limits)
        if any(s.request.request_id == request.request_id for s in self._all()):
            raise RequestRejected(
                f"request id {request.request_id!r} is in use; ids of running requests are unique",
                param="rid",
            )
        free = max(0, self._max_running - len(self._running))
        if len(self._waiting) >= free + self._max_queued:  # some wait only for the next step
            raise EngineBusy(
                f"the queue is full: {len(self._waiting)} requests wait and "
                f"{len(self._running)} run; try again later"
            )
        seed, now = request.params.seed, self._clock()
        seq = SequenceState(
            request=attribute_faults(request),
            arrival=self._arrivals,
            seed=seed if seed is not None else secrets.randbits(63),
            arrived_at=now,
            table=PageTable(self._pages.page_size),
            token_ids=list(request.prompt_ids),
            stop_ids=stop_ids(request.params, self._eos_ids),
            rank=self._order.rank(request, now),
        )
        insort(self._waiting, seq, key=_place)
        self._arrivals += 1

    def abort(self, request_id: str) -> Finish | None:
        """End a request between two steps and free its pages; None for an unknown id."""
        return self._end(request_id, FinishReason.ABORT)

    def fail(self, request_id: str, error: str) -> Finish:
        """End a request with FinishReason.ERROR and free its pages.

        A plan that is committed later must not contain it.
        """
        finish = self._end(request_id, FinishReason.ERROR, error)
        assert finish is not None, f"request {request_id} has ended before"
        return finish

    def flush_cache(self) -> int:
        """Drop cached prefixes and shared answers; return how many pages became free."""
        self._planner.flush()
        return self._pages.flush()

    def is_queued(self, request_id: str) -> bool:
        """Return whether a request waits and has never run (a preempted one has)."""
        return any(
            seq.request.request_id == request_id and seq.admitted_at is None
            for seq in self._waiting
        )

    def is_running(self, seq: SequenceState) -> bool:
        """Return whether a sequence was admitted and has neither ended nor been preempted."""
        return seq in self._running

    def request_ids(self) -> list[str]:
        return [seq.request.request_id for seq in self._all()]

    # -- one step -----------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Schedule the sequences of the next step and reserve their pages.

        Requests come in their order and preempt later ones when no pages are left, so the first
        one progresses in every step.
        """
        scheduled_seqs: list[ScheduledSequence] = []
        budget = self._chunk
        proposals = self._plan_rounds()
        preempted = False
        for seq in tuple(self._running):
            if seq not in self._running:
                continue  # preempted by an earlier one in this step
            scheduled = self._schedule(seq, budget, proposals)
            if scheduled is None:
                continue
            while not self._reserve(scheduled):
                preempted = True
                victim = self._running[-1]
                self._preempt(victim)
                if victim is seq:
                    break
            else:
                scheduled_seqs.append(scheduled)
                budget -= self._prefill_cost(scheduled)
        if not preempted:
            scheduled_seqs.extend(self._admit(budget))
        return StepPlan(tuple(scheduled_seqs))

    def reserve_ahead(self, plan: StepPlan) -> list[ScheduledSequence]:
        """Reserve pages for the next block of each sequence that will probably have one.

        The block may begin after any number of accepted tokens. Sequences are left out whose next
        proposal depends on the host, and those without free pages. Commit returns unused pages.
        """
        return [
            scheduled
            for scheduled in plan.sampling
            if self._drafts_next(scheduled)
            and self._extend(scheduled, self._slots_ahead(scheduled))
        ]

    def _drafts_next(self, scheduled: ScheduledSequence) -> bool:
        """Predict that a sequence's next round has a block of the draft model."""
        seq = scheduled.seq
        if seq.request.token_mask is not None or seq.num_remaining < _LEAST_AHEAD:
            return False
        if scheduled.is_round:
            return scheduled.is_drafting
        return self._num_slots > 0 and self._draft_limit(seq) > 0 and not self.is_suspended

    def _slots_ahead(self, scheduled: ScheduledSequence) -> int:
        return scheduled.stop + scheduled.num_drafts + self._num_slots

    def drop_last(self, plan: StepPlan) -> StepPlan:
        """Preempt the last sequence of a plan that does not fit into memory.

        No more sequences than now run from then on, until one of them ends.
        """
        last = max((s.seq for s in plan.scheduled_seqs), key=_place)
        self._preempt(last)
        self._fits_memory = max(1, len(self._running))
        return plan.without(last.request.request_id)

    def restart(self, plan: StepPlan) -> None:
        """Restart the sequences of a committed plan whose context was not written.

        Their tokens stay; all keys and values are computed again. Fewer sequences than in the
        plan run from then on, until one of them ends.
        """
        for scheduled in plan.scheduled_seqs:
            if scheduled.seq in self._running:
                self._preempt(scheduled.seq)
            else:
                scheduled.seq.kv_len = scheduled.start  # its new rows must not be published
        self._fits_memory = max(1, len(plan.scheduled_seqs) - 1)

    def commit(self, plan: StepPlan, results: Sequence[RoundResult]) -> list[Committed]:
        """Commit the step's results; the stop cut happens here and nowhere else."""
        by_sequence = {id(result.scheduled): result for result in results}
        return [
            self._commit_sequence(scheduled, by_sequence.get(id(scheduled)))
            for scheduled in plan.scheduled_seqs
        ]

    def release(self, plan: StepPlan) -> None:
        """Publish full pages and free those of ended sequences, after the context write."""
        for scheduled in plan.scheduled_seqs:
            self._publish(scheduled.seq)
        for seq in self._finished:
            self._pages.release(seq.table.trim(0))
        self._finished.clear()

    # -- planning -----------------------------------------------------------------------------

    def _plan_rounds(self) -> Mapping[int, Proposal]:
        """Return the proposals of the running sequences' rounds, by arrival."""
        rounds = [seq for seq in self._running if seq.kv_len >= seq.catch_up_len]
        if not rounds:
            return {}
        missing = sum(max(0, seq.catch_up_len - seq.kv_len) for seq in self._running)
        load = StepLoad(
            seqs=rounds,
            caps=[self._most_drafts(seq) for seq in rounds],
            chunk_rows=min(self._chunk, missing),
            context=sum(seq.kv_len for seq in rounds) // len(rounds),
        )
        proposals = self._planner.plan(load)
        return {seq.arrival: p for seq, p in zip(rounds, proposals, strict=True)}

    def _schedule(
        self, seq: SequenceState, budget: int, proposals: Mapping[int, Proposal]
    ) -> ScheduledSequence | None:
        if seq.kv_len < seq.catch_up_len:
            if budget <= 0:
                return None
            stop = min(seq.catch_up_len, seq.kv_len + budget)
            reaches_end = stop == len(seq.token_ids)
            return ScheduledSequence(
                seq=seq,
                start=seq.kv_len,
                stop=stop,
                num_drafts=0,
                samples=reaches_end,
                logprob_rows=_logprob_rows(seq, seq.kv_len, stop),
            )
        proposal = proposals[seq.arrival]
        return ScheduledSequence(
            seq=seq,
            start=seq.anchor_position,
            stop=len(seq.token_ids),
            num_drafts=proposal.num_tokens,
            samples=True,
            lookup_ids=proposal.lookup_ids,
            match_len=proposal.match_len,
            reason=proposal.reason,
            num_budgeted=proposal.num_budgeted,
        )

    def _most_drafts(self, seq: SequenceState) -> int:
        """Return the most draft tokens of a round, which commits one token more."""
        return min(self._draft_limit(seq), seq.num_remaining - 1)

    def _draft_limit(self, seq: SequenceState) -> int:
        """Return the engine's number of draft tokens, or the request's if that is lower."""
        limit = seq.request.params.num_draft_tokens
        return self._num_draft_tokens if limit is None else min(limit, self._num_draft_tokens)

    def _prefill_cost(self, scheduled: ScheduledSequence) -> int:
        return scheduled.num_committed if scheduled.start < scheduled.seq.catch_up_len else 0

    def _slots_needed(self, scheduled: ScheduledSequence) -> int:
        """Return the length that the page table must cover: rows and the draft's scratch."""
        if scheduled.is_drafting:
            return scheduled.start + max(self._num_slots, scheduled.num_drafts + 1)
        return scheduled.kv_len

    def _reserve(self, scheduled: ScheduledSequence) -> bool:
        return self._extend(scheduled, self._slots_needed(scheduled))

    def _extend(self, scheduled: ScheduledSequence, length: int) -> bool:
        """Make the page table cover so many tokens; return whether pages sufficed."""
        table = scheduled.seq.table
        missing = table.missing_pages(length)
        if missing <= 0:
            return True
        try:
            table.extend(self._pages.allocate(missing))
        except OutOfPages:
            return False
        return True

    def _admit(self, budget: int) -> list[ScheduledSequence]:
        scheduled_seqs: list[ScheduledSequence] = []
        computing = [seq for seq in self._running if seq.kv_len < seq.num_prompt]
        for seq in tuple(self._waiting):
            if len(self._running) >= self._fits_memory or budget <= 0:
                break
            if self._awaits_twin(seq, computing):
                continue
            scheduled = self._try_admit(seq, budget)
            if scheduled is None:
                break
            self._waiting.remove(seq)
            computing.append(seq)
            insort(self._running, seq, key=_place)
            scheduled_seqs.append(scheduled)
            budget -= self._prefill_cost(scheduled)
        return scheduled_seqs

    def _awaits_twin(self, seq: SequenceState, computing: Sequence[SequenceState]) -> bool:
        """Return whether a running prefill of the same prompt will publish pages for seq.

        So several choices of one prompt compute it once.
        """
        if not self._pages.caches_prefixes or seq.num_output > 0:
            return False
        num_shareable = seq.max_cached_tokens // self._pages.page_size
        return any(
            twin.kv_len // self._pages.page_size < num_shareable
            and twin.request.cache_salt == seq.request.cache_salt
            and twin.request.prompt_ids == seq.request.prompt_ids
            for twin in computing
        )

    def _try_admit(self, seq: SequenceState, budget: int) -> ScheduledSequence | None:
        """Admit a sequence if pages suffice for its committed tokens and one round."""
        if self._is_still_blocked(seq):
            return None
        most_more = max(self._num_slots, self._num_draft_tokens)
        try:
            hit = self._pages.match_prefix(
                seq.token_ids,
                max_tokens=seq.max_cached_tokens,
                num_pages=seq.table.missing_pages(len(seq.token_ids) + most_more),
                salt=seq.request.cache_salt,
            )
        except OutOfPages:
            self._blocked = seq, self._pages.num_published, self._pages.num_available
            return None
        self._blocked = None  # idle pages of its prefix may be in use now
        seq.table.extend(hit)
        seq.kv_len = len(hit) * self._pages.page_size
        seq.num_published = len(hit)
        if seq.admitted_at is None:
            seq.admitted_at = self._clock()
            seq.num_cached_tokens = seq.kv_len
            self.counters.num_prompt_tokens += seq.num_prompt
            self.counters.num_cached_tokens += seq.kv_len
        scheduled = self._schedule(seq, budget, self._resumed(seq))
        assert scheduled is not None, (seq.kv_len, budget)
        reserved = self._reserve(scheduled)
        assert reserved, "available pages were counted, and allocation failed"
        return scheduled

    def _is_still_blocked(self, seq: SequenceState) -> bool:
        """Return whether no page was published or freed since seq did not fit."""
        if self._blocked is None or self._blocked[0] is not seq:
            return False
        _, num_published, num_available = self._blocked
        pages = self._pages
        return pages.num_published == num_published and pages.num_available <= num_available

    def _resumed(self, seq: SequenceState) -> Mapping[int, Proposal]:
        """Return the proposal of a sequence that resumes with a round, by arrival."""
        if seq.kv_len < seq.catch_up_len:
            return {}
        return {seq.arrival: self._planner.plan_resumed(seq, self._most_drafts(seq))}

    def _preempt(self, seq: SequenceState) -> None:
        """Free a sequence's pages and queue it; it recomputes them when it is admitted again."""
        self._running.remove(seq)
        self._pages.release(seq.table.trim(0))
        seq.kv_len = 0
        seq.num_published = 0
        insort(self._waiting, seq, key=_place)
        self.counters.num_preemptions += 1

    # -- committing ---------------------------------------------------------------------------

    def _commit_sequence(
        self, scheduled: ScheduledSequence, result: RoundResult | None
    ) -> Committed:
        seq = scheduled.seq
        if result is not None:
            seq.prompt_logprobs += result.prompt_logprobs
        if result is None or not scheduled.samples:
            seq.kv_len = scheduled.stop
            return Committed(scheduled, scheduled.num_rows, None)
        is_first = seq.num_output == 0
        num_before = len(seq.token_ids)
        try:
            new_ids, finish = self._append(seq, scheduled, result.new_ids)
        except RequestFault as fault:
            del seq.token_ids[num_before:]
            return self._commit_fault(scheduled, fault)
        seq.kv_len = len(seq.token_ids) - 1
        self.counters.num_output_tokens += len(new_ids)
        if not is_first and self._draft_limit(seq) < self._num_draft_tokens:
            self.counters.num_capped_rounds += 1
        if finish is None:
            spare = seq.table.trim(len(seq.token_ids))
            self._pages.release(spare)
        else:
            self._retire(seq)
        event = TokenEvent(
            seq.request.request_id,
            new_ids,
            finish,
            logprobs=result.logprobs[: len(new_ids)],
            prompt_logprobs=tuple(seq.prompt_logprobs) if is_first else (),
            rounds=(_round_of(scheduled, len(new_ids)),),
        )
        return Committed(scheduled, seq.kv_len - scheduled.start, event)

    def _commit_fault(self, scheduled: ScheduledSequence, fault: RequestFault) -> Committed:
        """End a sequence whose code raised, without the step's rows and tokens."""
        seq = scheduled.seq
        self._retire(seq)
        finish = seq.finish(FinishReason.ERROR, None, self._clock(), error=str(fault))
        event = TokenEvent(seq.request.request_id, (), finish)
        return Committed(scheduled, 0, event, fault)

    def _retire(self, seq: SequenceState) -> None:
        """Remove an ended sequence from the running ones; release() frees its pages."""
        self._running.remove(seq)
        self._planner.forget(seq)
        self._finished.append(seq)
        self._fits_memory = self._max_running

    def _end(
        self, request_id: str, reason: FinishReason, error: str | None = None
    ) -> Finish | None:
        for queue in (self._running, self._waiting):
            for seq in queue:
                if seq.request.request_id == request_id:
                    queue.remove(seq)
                    self._planner.forget(seq)
                    self._pages.release(seq.table.trim(0))
                    self._fits_memory = self._max_running
                    return seq.finish(reason, None, self._clock(), error=error)
        return None

    def _append(
        self, seq: SequenceState, scheduled: ScheduledSequence, new_ids: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Finish | None]:
        """Append ids up to the first stop, and record the round up to there."""
        stop = None
        kept = 0
        for token_id in new_ids:
            seq.token_ids.append(token_id)
            kept += 1
            stop = stop_after(seq, token_id)
            if stop is not None:
                break
        now = self._clock()
        if seq.first_token_at is None:
            seq.first_token_at = now
        if scheduled.is_round:
            seq.record_round(scheduled.source, scheduled.num_drafts, kept - 1)
        has_proposal = scheduled.num_drafts > 0 or scheduled.is_drafting
        if has_proposal and stop is None:  # a stop hides later acceptances
            self._planner.record(scheduled, kept - 1)
        finish = seq.finish(stop[0], stop[1], now) if stop is not None else None
        return new_ids[:kept], finish

    def _publish(self, seq: SequenceState) -> None:
        full = seq.kv_len // self._pages.page_size
        if full > seq.num_published and full <= len(seq.table.pages):
            num_tokens = full * self._pages.page_size
            self._pages.publish(
                seq.token_ids[:num_tokens], seq.table.pages[:full], salt=seq.request.cache_salt
            )
            seq.num_published = full

    def _all(self) -> list[SequenceState]:
        return self._running + self._waiting


def _place(seq: SequenceState) -> tuple[float, int]:
    return seq.place


def _round_of(scheduled: ScheduledSequence, num_tokens: int) -> Round:
    """Describe the round of a scheduled sequence that committed num_tokens tokens."""
    return Round(scheduled.source, scheduled.num_drafts, num_tokens - 1, num_tokens)


def _logprob_rows(seq: SequenceState, start: int, stop: int) -> range:
    """Return the rows of start..stop-1 whose next token needs a prompt logprob."""
    missing = seq.missing_prompt_logprobs
    if not missing:
        return range(0)
    assert start < missing.start, (
        f"position {missing.start} needs a logprob, but computing begins at {start}"
    )
    return range(missing.start - 1, max(missing.start - 1, min(stop, missing.stop - 1)))
