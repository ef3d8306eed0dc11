"""Defines the engine's public types. Importing it loads no torch."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

ContextKVMode = Literal["auto", "on", "off"]

SchedulingPolicy = Literal["fcfs", "priority"]  # what decides the order of requests

PriorityOrder = Literal["higher_first", "lower_first"]  # which priorities come first

TokenSource = Literal["draft", "lookup", "target"]  # what proposed a committed token

MAX_TOP_LOGPROBS = 20  # most likely tokens per position, in addition to the sampled one
MAX_LOGPROB_TOKEN_IDS = 256  # tokens of a request whose logprobs each position has


class FinishReason(StrEnum):
    """Names why a request ended. Every request ends exactly once, with one of these."""

    STOP = "stop"  # a stop token, the end-of-sequence token, a stop string, a token mask's end
    LENGTH = "length"  # max_new_tokens, or the context limit
    ABORT = "abort"  # cancelled by the caller
    ERROR = "error"  # an exception of the request's own code, or no memory for it alone


class StopScanner(Protocol):
    """Finds stop strings in committed tokens; the engine itself handles token ids only.

    The server creates one for each choice of a request. One sequence uses it.
    """

    def feed(self, token_id: int) -> str | None:
        """Take the next committed token; return the stop string that it completes, if any."""
        ...


class TokenMask(Protocol):
    """Restricts the next token, for a grammar or any other rule over token ids.

    There is one for each choice of a request. One sequence uses it, in the engine's thread. Its
    state follows the committed tokens; `fill` looks ahead along a draft.
    """

    def fill(self, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        """Set the bits of allowed tokens: bit t % 32 of words[t // 32] for token t.

        Token t would follow the committed tokens and draft_ids, which are all allowed. All bits
        are 0 before. At least one must be set, unless draft_ids end the output. A call changes no
        state, and a step may repeat it; only `commit` reports which draft tokens were accepted.
        """
        ...

    def commit(self, token_id: int) -> bool:
        """Advance by a committed token; return True if no token may follow it.

        The output ends then. After a stop has ended it there are no more calls.
        """
        ...


SOURCES: tuple[TokenSource, ...] = ("draft", "lookup", "target")
# Why a round verifies no draft: no drafts would pay at this load; the confidences leave none; there
# is nothing to propose; the request allows none, or one token is left of its output.
PlainReason = Literal["load", "confidence", "no_proposal", "limit"]

GREEDY_BELOW = 1e-5  # temperatures under this count as 0


@dataclass(frozen=True, slots=True)
class EngineSamplingParams:
    """Configures sampling of one request. The defaults are plain greedy decoding.

    Everything applies in transformers' order: logit_bias, repetition_penalty, the two OpenAI
    penalties, the token mask, min_new_tokens; then temperature, top_k, top_p, min_p.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0  # 0 is greedy
    top_k: int = -1  # -1 is off
    top_p: float = 1.0  # (0, 1]; 1 is off
    min_p: float = 0.0  # [0, 1]; 0 is off
    seed: int | None = None  # None: a random one, drawn when the request is queued
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    # Masks stop tokens until min_new_tokens is reached, unless only stop tokens are allowed.
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0  # 0.01 to 100, over prompt and output; 1 is off
    presence_penalty: float = 0.0  # -2 to 2, subtracted from each token of the output once
    frequency_penalty: float = 0.0  # -2 to 2, subtracted once for each occurrence in the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added value); ids are distinct
    # The most draft tokens that a round verifies, anchor and bonus token not counted; 0 is plain
    # decoding, None the engine's own number.
    num_draft_tokens: int | None = None
    num_logprobs: int | None = None  # None: no logprobs; n: each token and the n most likely
    logprob_token_ids: tuple[int, ...] = ()  # with num_logprobs: further tokens of each position
    prompt_logprobs_from: int | None = None  # first position of prompt logprobs; None: none

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, without random numbers."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Request:
    """Describes one generation; immutable.

    Choices of one prompt are requests that differ in `choice`: with the same seed they use
    independent random numbers.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: EngineSamplingParams = EngineSamplingParams()
    stop_scanner: StopScanner | None = None
    token_mask: TokenMask | None = None
    choice: int = 0
    priority: int = 0  # has an effect with the policy "priority"
    cache_salt: str = ""  # requests share computed prefixes only with those of the same salt
    owner: str = ""  # whose text this is: only requests of the same owner may be given parts of it


@dataclass(frozen=True, slots=True)
class SourceStats:
    """Counts the rounds of one source, and its draft tokens; `target` has none."""

    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0

    def plus(self, num_draft_tokens: int, num_accepted: int) -> "SourceStats":
        """Return the counts with one more round."""
        return SourceStats(
            self.num_rounds + 1,
            self.num_draft_tokens + num_draft_tokens,
            self.num_accepted + num_accepted,
        )


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counts accepted draft tokens of one request.

    accept_counts[a] is the number of rounds in which exactly `a` draft tokens were accepted, the
    bonus token excluded. A round is a target pass that verified at least one draft token; only
    `sources` counts the rounds of plain decoding too, under "target".
    """

    accept_counts: tuple[int, ...] = ()
    num_draft_tokens: int = 0
    sources: Mapping[str, SourceStats] = field(default_factory=dict)

    @property
    def num_rounds(self) -> int:
        return sum(self.accept_counts)

    @property
    def num_accepted(self) -> int:
        return sum(a * rounds for a, rounds in enumerate(self.accept_counts))

    @property
    def mean_accept_length(self) -> float:
        """Tokens committed per round, bonus included; 0.0 before the first round."""
        return 1 + self.num_accepted / self.num_rounds if self.num_rounds else 0.0

    @property
    def accept_rate(self) -> float:
        """Share of draft tokens that were accepted; 0.0 before the first round."""
        return self.num_accepted / self.num_draft_tokens if self.num_draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """Describes the end of a request.

    matched is the stop that ended it: a token id, a stop string, or None.
    """

    reason: FinishReason
    matched: int | str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    speculation: SpeculationStats
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    error: str | None = None  # the message for the caller, with FinishReason.ERROR


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Holds the target's log probability (natural) of a token, from unprocessed logits.

    `top` has the most likely tokens of the same position as (id, log probability), best first, and
    `requested` the request's logprob_token_ids. rank counts the tokens that are at least as likely.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    requested: tuple[tuple[int, float], ...] = ()
    rank: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """Describes the round that committed an event's tokens.

    The token at position p of the round, from 0, comes from `source` if p < num_accepted, and is
    the target's own otherwise. num_accepted counts as in SpeculationStats.
    """

    source: TokenSource  # of the draft tokens; "target" in a round without any
    num_drafted: int  # draft tokens verified
    num_accepted: int
    num_tokens: int  # of the round, in the event
    position: int = 0  # in the round, of the event's first token


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Carries the tokens that a step committed for one request; the last one has `finish`.

    token_ids includes the token that completes a stop, and may be empty after an abort or error.
    rounds has an entry for each round of the tokens, in order; one, unless events were joined.
    logprobs has an entry for each of token_ids, if requested. prompt_logprobs come once, with the
    first token: an entry for each prompt position from prompt_logprobs_from on, except position
    0, which has no logits.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish: Finish | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    rounds: tuple[Round, ...] = ()
    at: float = field(default_factory=time.perf_counter, compare=False)  # time of commit


@dataclass(frozen=True, slots=True)
class ContextKVStatus:
    """Names the path that writes the draft's context keys and values.

    path is "none" without a draft. `reason` explains the per-layer path, and is None otherwise.
    """

    mode: ContextKVMode
    path: Literal["stacked", "per_layer", "none"]
    reason: str | None
    stacked_bytes: int  # always 0: the layers' parameters are views into the stacked tensors


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Holds counters since the start and current gauges, taken between steps.

    Seconds are sums over steps, split by stage: plan, draft, verify, commit, context.
    """

    num_steps: int = 0
    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    sources: Mapping[str, SourceStats] = field(default_factory=dict)  # all rounds
    plain_rounds: Mapping[str, int] = field(default_factory=dict)  # without drafts, by reason
    num_withheld_draft_tokens: int = (
        0  # that fitted into rounds, but were too expensive at their load
    )
    num_capped_rounds: int = 0  # whose requests allow fewer draft tokens than the engine
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_processed_rows: int = 0  # rows of logits changed by options, counted once for each rule
    num_logprob_rows: int = 0  # rows with requested log probabilities
    finished: Mapping[str, int] = field(default_factory=dict)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    idle_seconds: float = 0.0  # without any request
    num_running: int = 0
    num_waiting: int = 0
    num_pages: int = 0
    num_used_pages: int = 0
    num_cached_pages: int = 0
    is_suspended: bool = False  # drafts are too expensive at the load of the latest rounds
    has_collapsed: bool = False  # acceptance over the last rounds is too low for the draft
    seconds_since_progress: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Describes the engine as resolved at start. `details` is JSON-ready and for people."""

    served_max_len: int  # tokens, prompt and output together
    vocab_size: int
    block_size: int  # draft tokens per round; 0 without a draft
    eos_token_ids: tuple[int, ...]
    details: Mapping[str, object] = field(default_factory=dict)


class EngineClient(Protocol):
    """Runs requests: the engine's interface to the server."""

    @property
    def info(self) -> EngineInfo: ...

    async def generate(self, request: Request, on_event: Callable[[TokenEvent], None]) -> None:
        """Run a request to its end; call on_event for each event, the last one with a finish.

        on_event runs in the caller's event loop. Cancelling this call cancels the request. So does
        an exception of on_event, which is raised here.

        Raises RequestRejected, EngineBusy or EngineDraining before the first event, and
        RequestFailed or EngineDead at any time. No event has FinishReason.ERROR.
        """
        ...

    async def generate_whole(self, request: Request, events: list[TokenEvent]) -> None:
        """Run a request to its end, with one wake-up of the event loop; append to `events`.

        Events are appended as they happen, so they are there however the call ends. More may be
        appended after a call that was cancelled. Raises as `generate` does.
        """
        ...

    def is_healthy(self) -> bool:
        """Return False once the step loop has stopped."""
        ...

    async def is_queued(self, request_id: str) -> bool:
        """Return whether a request waits and has never run; False for an unknown id."""
        ...

    async def abort(self, request_id: str | None) -> int:
        """End one request, or all for None, with reason ABORT; return how many were found."""
        ...

    async def set_context_kv(self, mode: ContextKVMode) -> ContextKVStatus:
        """Switch the context writer between steps.

        Raises RequestRejected for `on` when the stacked form is not possible.
        """
        ...

    async def context_kv_status(self) -> ContextKVStatus: ...

    async def start_profile(self, folder: str) -> None:
        """Profile the engine from the next step until stop_profile.

        Raises RequestRejected while a profile runs, or for a folder that cannot be written.
        """
        ...

    async def stop_profile(self) -> str:
        """Write the profile and return its file. Steps wait until it is written.

        Raises RequestRejected when none runs, or when the file cannot be written.
        """
        ...

    async def flush_cache(self) -> int:
        """Empty the prefix cache; return how many pages became free."""
        ...

    async def snapshot(self) -> EngineSnapshot: ...

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and let running ones finish.

        Return False if requests were aborted after timeout_s, or if the engine hangs or has died.
        """
        ...
