"""The engine's face: what goes in, what comes out. Importing it loads no torch."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

ContextKVMode = Literal["auto", "on", "off"]

MAX_TOP_LOGPROBS = 20  # tokens told of beside the one that was said


class FinishReason(StrEnum):
    """Why a request ended. Every request ends exactly once, with one of these."""

    STOP = "stop"  # a stop token, the end-of-sequence token, a stop string, a row mask's end
    LENGTH = "length"  # max_new_tokens, or the context limit
    ABORT = "abort"  # cancelled by the caller
    ERROR = "error"  # an exception of the request's own code, or no memory for it alone


class StopScanner(Protocol):
    """Looks for a stop in text, on behalf of an engine that knows only ids.

    Made by the server for one request (and one choice) and used by one sequence.
    """

    def feed(self, token_id: int) -> str | None:
        """Take the next committed token; the stop string that it completes, if any."""
        ...


class TokenMask(Protocol):
    """Says which tokens may come next, on behalf of a grammar or any other rule over ids.

    Made for one request (and one choice), used by one sequence, always in the engine's thread.
    It stands after everything that has been committed, and is asked ahead along drafts.
    """

    def fill(self, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        """Allow tokens: bit t % 32 of words[t // 32] says that token t may follow.

        It would follow the committed tokens and draft_ids, each of which is allowed where it
        stands. All bits are 0 at first; at least one is to be set, if draft_ids do not end the
        answer. What became of a draft comes with `commit`, and with nothing else.
        """
        ...

    def commit(self, token_id: int) -> bool:
        """Go on behind this token, which stands now. True where nothing may follow it.

        Then the answer ends with it. A stop may end it earlier; then nothing more is asked.
        """
        ...


GREEDY_BELOW = 1e-5  # temperatures under this count as 0


@dataclass(frozen=True, slots=True)
class EngineSamplingParams:
    """How the next token is drawn. The defaults are plain greedy decoding.

    Everything applies in transformers' order: logit_bias, repetition_penalty, the two OpenAI
    penalties, a row mask, min_new_tokens; then temperature, top_k, top_p, min_p.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0  # 0 is greedy
    top_k: int = -1  # -1 is off
    top_p: float = 1.0  # (0, 1]; 1 is off
    min_p: float = 0.0  # [0, 1]; 0 is off
    seed: int | None = None  # None: a fresh one, drawn at admission
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    # Until then nothing that is a stop by its id can be said, but where nothing else is allowed.
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0  # 0.01 to 100, over prompt and output; 1 is off
    presence_penalty: float = 0.0  # -2 to 2, off every token of the output once
    frequency_penalty: float = 0.0  # -2 to 2, off every token of the output as often as it is there
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added); ids are distinct
    num_logprobs: int | None = None  # None: none told; n: of each token and the n likeliest
    prompt_logprobs_from: int | None = None  # first prompt position to tell of; None: none

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is said, and no random number is asked for."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asks; never changes.

    Choices of one prompt are requests that differ in `choice`: with the same seed they draw
    independent numbers.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: EngineSamplingParams = EngineSamplingParams()
    stop_scanner: StopScanner | None = None
    token_mask: TokenMask | None = None
    choice: int = 0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What became of one request's draft blocks.

    accept_counts[a] is the number of rounds in which exactly `a` draft tokens stood (bonus
    excluded); a round is a target pass that verified at least one draft token.
    """

    accept_counts: tuple[int, ...] = ()
    num_draft_tokens: int = 0

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


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a request.

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
    error: str | None = None  # with FinishReason.ERROR, for the caller


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the target alone held a token: natural logarithm, before any option.

    `top` has the likeliest tokens of the same place, likeliest first, as (id, log probability).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that a step committed for one request; the last event carries `finish`.

    token_ids includes the token that completes a stop; it may be empty in an abort's event.
    logprobs has an entry for each of token_ids where they were asked for. prompt_logprobs come
    once, with the first token: an entry for each prompt position from prompt_logprobs_from on,
    but for position 0, which follows nothing.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish: Finish | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    at: float = field(default_factory=time.perf_counter, compare=False)  # when it was committed


@dataclass(frozen=True, slots=True)
class ContextKVStatus:
    """Which path writes the draft's context keys and values, and why.

    path is "none" without a draft. `reason` says why the per-layer path is active, else None.
    """

    mode: ContextKVMode
    path: Literal["stacked", "per_layer", "none"]
    reason: str | None
    stacked_bytes: int  # extra memory that the stacked form costs


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Counters since start and gauges of now; taken between steps.

    Seconds are sums over steps, split by stage: plan, draft, verify, commit, context.
    """

    num_steps: int = 0
    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    num_withheld_draft_tokens: int = 0  # that rounds had room for, but would not have paid
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_processed_rows: int = 0  # rows of logits that options changed, once for each rule
    num_logprob_rows: int = 0  # rows whose log probabilities were told
    finished: Mapping[str, int] = field(default_factory=dict)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    idle_seconds: float = 0.0  # in which there was no request
    num_running: int = 0
    num_waiting: int = 0
    num_pages: int = 0
    num_used_pages: int = 0
    num_cached_pages: int = 0
    is_suspended: bool = False  # drafts do not pay at the load of the latest rounds
    has_collapsed: bool = False  # acceptance over the last rounds does not pay for the draft
    seconds_since_progress: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine is, resolved at start. `details` is JSON-ready and for people."""

    served_max_len: int  # tokens, prompt and output together
    vocab_size: int
    block_size: int  # draft tokens a round; 0 without a draft
    eos_token_ids: tuple[int, ...]
    details: Mapping[str, object] = field(default_factory=dict)


class EngineClient(Protocol):
    """All that the server knows of the engine."""

    @property
    def info(self) -> EngineInfo: ...

    async def generate(self, request: Request, hear: Callable[[TokenEvent], None]) -> None:
        """Run a request to its end; `hear` gets its events, the last of them with a finish.

        It is called in this event loop as they happen. Cancelling the call cancels the request,
        and so does what `hear` raises, which is raised here.

        Raises RequestRejected, EngineBusy or EngineDraining before the first event, and
        RequestFailed or EngineDead at any time. No event has FinishReason.ERROR.
        """
        ...

    async def generate_whole(self, request: Request, events: list[TokenEvent]) -> None:
        """The same without waking anybody before the end: `events` gains them as they happen.

        So it has what there was when the call ends, however that ends. It may gain more behind a
        call that was cancelled.
        """
        ...

    def is_healthy(self) -> bool:
        """False once the step loop has stopped."""
        ...

    async def is_queued(self, request_id: str) -> bool:
        """Whether a request waits and has never run; False for one that is not known."""
        ...

    async def abort(self, request_id: str | None) -> int:
        """End one request (all of them for None) with reason ABORT; how many were found."""
        ...

    async def set_context_kv(self, mode: ContextKVMode) -> ContextKVStatus:
        """Switch the context writer between steps.

        Raises RequestRejected when `on` is asked for and the stacked form cannot hold.
        """
        ...

    async def context_kv_status(self) -> ContextKVStatus: ...

    async def start_profile(self, folder: str) -> None:
        """Record what the engine does from the next step on, until stop_profile.

        Raises RequestRejected while a recording runs, or for a folder that cannot be written.
        """
        ...

    async def stop_profile(self) -> str:
        """Write the recording; its file. Holds up the steps while it writes.

        Raises RequestRejected when none runs, or when the file cannot be written.
        """
        ...

    async def flush_cache(self) -> int:
        """Forget every cached page that no sequence holds; how many pages that freed."""
        ...

    async def snapshot(self) -> EngineSnapshot: ...

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and let running ones finish.

        False if time ran out, and what still ran was aborted; or if the engine hangs or has died.
        """
        ...
