"""Defines the options of the HTTP application."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from server.http.auth import KeyRing
from server.http.timeouts import TimeLimits
from server.parsers.chat_parser import ReasoningParserName, ToolParserName

# Values of sampling fields that neither a request nor the model sets: plain sampling, as in the
# OpenAI API. `temperature: 0` in a request is greedy.
NEUTRAL_SAMPLING: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of the HTTP application. Raises ValueError for an unknown default_sampling name."""

    served_name: str  # model name in /v1/models
    config: Mapping[str, object] = field(default_factory=dict)  # shown by /server_info; no secrets
    # Name among the replicas of a deployment, in ids and as a label of all metrics.
    replica: str | None = None
    # Defaults of sampling fields, usually from the model's generation_config.json. Names as in
    # NEUTRAL_SAMPLING, which has the values of missing ones.
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    # Limit of a request without one; auto: the route's own; fit: what fits the context.
    default_max_tokens: int | Literal["auto", "fit"] = "auto"
    max_tokens_cap: int | None = None  # upper limit of a request; None: what fits the context
    responses_store: int = 1000  # responses kept for each key; 0: none
    keys: KeyRing = field(default_factory=KeyRing)
    cors_origins: tuple[str, ...] = ()  # allowed browser origins; "*" is all
    capacity: int | None = None  # requests that run and wait; a longer list goes in portions
    max_body_bytes: int = 8 * 2**20
    keepalive_s: float = 15.0  # without data on a stream, until a comment is sent
    limits: TimeLimits = field(default_factory=TimeLimits)
    metric_aliases: bool = False  # /metrics has the counters of speculation as vllm: too
    log_requests: bool = True  # one line per request
    playground: bool = True  # the page at /
    profile_dir: str | None = None  # for /stop_profile; None: profiling is off
    ready_when_collapsed: bool = True  # /ready is 200 also while acceptance has collapsed
    tool_parser: ToolParserName = "auto"
    reasoning_parser: ReasoningParserName = "none"
    grammar_timeout_s: float = 3.0  # limit for compiling a grammar
    additional_properties: bool = False  # objects of schemas allow ones that they do not name
    special_tokens_in_content: bool = False  # of a chat; otherwise they are plain text there
    stall_s: float = 60.0  # without progress while requests run, until /ready is 503

    def __post_init__(self) -> None:
        unknown = sorted(set(self.default_sampling) - set(NEUTRAL_SAMPLING))
        if unknown:
            accepted = ", ".join(NEUTRAL_SAMPLING)
            raise ValueError(f"default_sampling: found {', '.join(unknown)}; accepted: {accepted}")
