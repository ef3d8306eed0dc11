"""Holds the state of one request in the engine."""

from dataclasses import dataclass, field

from engine.api import (
    Finish,
    FinishReason,
    Request,
    SourceStats,
    SpeculationStats,
    TokenLogprob,
    TokenSource,
)
from engine.scheduler.token_counts import TokenCounts
from kv_pool import PageTable


@dataclass(slots=True, eq=False)
class SequenceState:
    """Tracks one request's tokens, pages and statistics. Only the scheduler writes to it.

        token_ids   p p p p p p | c c c | a
                    prompt        committed, the last one is the anchor
        kv_len      <-- tokens whose keys and values are in the pool -->

    Between steps, once the prompt is through, kv_len == len(token_ids) - 1: the anchor is
    committed, but has not been through the target yet. The same holds for the draft's context
    keys and values, which are on the same pages.
    """

    request: Request
    arrival: int  # order of arrival
    seed: int
    arrived_at: float  # seconds, monotonic
    table: PageTable
    token_ids: list[int]
    stop_ids: frozenset[int] = frozenset()  # stop tokens, end-of-sequence ids included
    rank: float = 0.0  # among requests; a lower one comes first
    kv_len: int = 0
    num_published: int = 0  # leading pages in the prefix cache
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache at admission
    accept_counts: list[int] = field(default_factory=list)
    num_draft_tokens: int = 0
    sources: dict[str, SourceStats] = field(default_factory=dict)  # its rounds, by source
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    admitted_at: float | None = None
    first_token_at: float | None = None
    history: TokenCounts = field(init=False)  # counts token_ids for penalties
    is_reproducible: bool = field(init=False)  # the caller's seed decides, so load must not

    def __post_init__(self) -> None:
        self.history = TokenCounts(num_prompt=self.num_prompt)
        params = self.request.params
        self.is_reproducible = params.seed is not None and not params.is_greedy

    @property
    def place(self) -> tuple[float, int]:
        """Return the place in the order of requests: by rank, then by arrival."""
        return self.rank, self.arrival

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Return the output tokens that max_new_tokens still allows."""
        return self.request.params.max_new_tokens - self.num_output

    @property
    def anchor_position(self) -> int:
        return len(self.token_ids) - 1

    @property
    def catch_up_len(self) -> int:
        """Return where prefill ends: a new prompt's end, a resumed sequence's anchor.

        A resumed sequence leaves the anchor to its next round, so that a preemption changes
        neither which positions are drafted nor which random numbers decide them.
        """
        return self.num_prompt if self.num_output == 0 else len(self.token_ids) - 1

    @property
    def missing_prompt_logprobs(self) -> range:
        """Return the prompt positions whose requested log probabilities are not computed yet."""
        first = self.request.params.prompt_logprobs_from
        if first is None:
            return range(0)
        return range(max(1, first) + len(self.prompt_logprobs), self.num_prompt)

    @property
    def max_cached_tokens(self) -> int:
        """Return the leading tokens that may come from the prefix cache.

        The anchor is always computed, and so is the row of each missing prompt logprob.
        """
        missing = self.missing_prompt_logprobs
        return (missing.start if missing else len(self.token_ids)) - 1

    def record_round(self, source: TokenSource, num_drafts: int, num_accepted: int) -> None:
        """Count one round's drafts and accepted drafts."""
        before = self.sources.get(source, SourceStats())
        self.sources[source] = before.plus(num_drafts, num_accepted)
        if num_drafts == 0:
            return
        missing = num_drafts + 1 - len(self.accept_counts)
        self.accept_counts.extend([0] * missing)
        self.accept_counts[num_accepted] += 1
        self.num_draft_tokens += num_drafts

    def finish(
        self,
        reason: FinishReason,
        matched: int | str | None,
        now: float,
        *,
        error: str | None = None,
    ) -> Finish:
        admitted = self.admitted_at if self.admitted_at is not None else now
        first = self.first_token_at if self.first_token_at is not None else now
        return Finish(
            reason=reason,
            matched=matched,
            num_prompt_tokens=self.num_prompt,
            num_output_tokens=self.num_output,
            num_cached_tokens=self.num_cached_tokens,
            speculation=SpeculationStats(
                tuple(self.accept_counts), self.num_draft_tokens, dict(self.sources)
            ),
            queue_seconds=admitted - self.arrived_at,
            prefill_seconds=first - admitted,
            decode_seconds=now - first,
            error=error,
        )
