"""One request on its way through the engine."""

from dataclasses import dataclass, field

from engine.api import Finish, FinishReason, Request, SpeculationStats, TokenLogprob
from engine.scheduler.token_counts import TokenCounts
from kv_pool import PageTable


@dataclass(slots=True, eq=False)
class SequenceState:
    """A request inside the engine. Only the scheduler writes to it.

        token_ids   p p p p p p | c c c | a
                    prompt        committed, the last one is the anchor
        kv_len      <-- tokens whose keys and values are in the pool -->

    Between steps, once the prompt is through, kv_len == len(token_ids) - 1: the anchor is
    committed, but has not been through the target yet. The same holds of the draft's context
    keys and values, which live on the same pages.
    """

    request: Request
    arrival: int  # order of arrival; the scheduler's only notion of age
    seed: int
    arrived_at: float  # seconds, monotonic
    table: PageTable
    token_ids: list[int]
    stop_ids: frozenset[int] = frozenset()  # tokens that end it, end-of-sequence ids included
    kv_len: int = 0
    num_published: int = 0  # pages that the prefix cache knows
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache spared at admission
    accept_counts: list[int] = field(default_factory=list)
    num_draft_tokens: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    admitted_at: float | None = None
    first_token_at: float | None = None
    history: TokenCounts = field(init=False)  # counts token_ids for who asks; no state of its own

    def __post_init__(self) -> None:
        self.history = TokenCounts(num_prompt=self.num_prompt)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Output tokens that max_new_tokens still allows."""
        return self.request.params.max_new_tokens - self.num_output

    @property
    def is_reproducible(self) -> bool:
        """Whether the caller's own seed decides the tokens: then load must not, in any way."""
        params = self.request.params
        return params.seed is not None and not params.is_greedy

    @property
    def anchor_position(self) -> int:
        return len(self.token_ids) - 1

    @property
    def catch_up_len(self) -> int:
        """How far prefill goes: a fresh prompt to its end, a resumed sequence to its anchor.

        A resumed sequence leaves the anchor to its next round, so that a preemption changes
        neither which positions are drafted nor which random numbers decide them.
        """
        return self.num_prompt if self.num_output == 0 else len(self.token_ids) - 1

    @property
    def owed_prompt_logprobs(self) -> range:
        """Prompt positions whose log probabilities are asked for and not known yet."""
        asked = self.request.params.prompt_logprobs_from
        if asked is None:
            return range(0)
        return range(max(1, asked) + len(self.prompt_logprobs), self.num_prompt)

    @property
    def max_cached_tokens(self) -> int:
        """Leading tokens that need not be computed if the prefix cache has them.

        The anchor always is; so is a row that still has a prompt token's log probability to tell.
        """
        owed = self.owed_prompt_logprobs
        return min(len(self.token_ids), owed.start if owed else len(self.token_ids)) - 1

    def record_round(self, num_drafts: int, num_accepted: int) -> None:
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
            speculation=SpeculationStats(tuple(self.accept_counts), self.num_draft_tokens),
            queue_seconds=admitted - self.arrived_at,
            prefill_seconds=first - admitted,
            decode_seconds=now - first,
            error=error,
        )
