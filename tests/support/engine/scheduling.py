"""Runs a scheduler without models: an oracle replaces draft and target, on integers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine import EngineSamplingParams, Request, TokenEvent
from engine.proposers.fixed_rule import FixedPlanner, FixedRule
from engine.scheduler.plan import RoundResult, ScheduledSequence, StepPlan
from engine.scheduler.proposals import ProposalPlanner
from engine.scheduler.request_limits import RequestLimits, served_len
from engine.scheduler.request_order import RequestOrder
from engine.scheduler.scheduler import Committed, Scheduler
from kv_pool import PageManager

EOS = 0


def request(
    request_id: str,
    *,
    prompt_len: int = 5,
    max_new_tokens: int = 8,
    priority: int = 0,
    **params: object,
) -> Request:
    return Request(
        request_id,
        tuple(range(1, prompt_len + 1)),
        EngineSamplingParams(max_new_tokens=max_new_tokens, **params),  # type: ignore[arg-type]
        priority=priority,
    )


@dataclass
class Harness:
    """Runs a scheduler step by step. `accept` returns the number of accepted drafts."""

    num_pages: int = 64
    page_size: int = 4
    block_size: int = 3
    num_draft_tokens: int = 3
    max_running: int = 4
    max_queued: int = 64
    chunk: int = 6
    max_len: int = 128
    prefix_cache: bool = False
    order: RequestOrder = field(default_factory=RequestOrder)
    now: float = 0.0  # seconds
    planner: ProposalPlanner | None = None  # None: whole blocks
    accept: Callable[[ScheduledSequence], int] = lambda scheduled: scheduled.num_drafts
    events: list[TokenEvent] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pages = PageManager(
            num_pages=self.num_pages, page_size=self.page_size, prefix_cache=self.prefix_cache
        )
        rule = FixedRule(num_draft_tokens=self.num_draft_tokens, lookup=None)
        self.scheduler = Scheduler(
            order=self.order,
            clock=lambda: self.now,
            pages=self.pages,
            limits=RequestLimits(
                max_len=served_len(
                    model_len=self.max_len,
                    pool_tokens=self.num_pages * self.page_size,
                    num_slots=max(self.block_size, self.num_draft_tokens),
                ),
                vocab_size=1000,
            ),
            eos_ids=frozenset({EOS}),
            num_slots=self.block_size,
            num_draft_tokens=self.num_draft_tokens,
            planner=self.planner or FixedPlanner(rule),
            max_running=self.max_running,
            max_queued=self.max_queued,
            prefill_chunk_tokens=self.chunk,
        )

    def step(self) -> list[Committed]:
        plan = self.scheduler.plan()
        self.plans.append(plan)
        results = [RoundResult(scheduled, self._decide(scheduled)) for scheduled in plan.sampling]
        committed = self.scheduler.commit(plan, results)
        self.scheduler.release(plan)
        self.events += [c.event for c in committed if c.event is not None]
        return committed

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if self.scheduler.is_idle:
                return
            self.step()
        raise AssertionError(f"not idle after {max_steps} steps")

    def output(self, request_id: str) -> list[int]:
        return [t for e in self.events if e.request_id == request_id for t in e.token_ids]

    def finish_of(self, request_id: str) -> TokenEvent:
        (last,) = [e for e in self.events if e.request_id == request_id and e.finish is not None]
        return last

    def _decide(self, scheduled: ScheduledSequence) -> tuple[int, ...]:
        """Generate 100 + position for any draft, so that no output depends on drafts."""
        accepted = self.accept(scheduled)
        assert 0 <= accepted <= scheduled.num_drafts
        first = len(scheduled.seq.token_ids)
        return tuple(100 + first + i for i in range(accepted + 1))
