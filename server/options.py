"""What the HTTP service needs to know besides the engine and the tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.http.auth import KeyRing
from server.http.timeouts import TimeLimits
from server.parsers.chat_parser import ReasoningParserName, ToolParserName

# What a missing sampling field means where the model says nothing: plain sampling, as the
# OpenAI API and the servers around it have it. `temperature: 0` in a request asks for greedy.
NEUTRAL_SAMPLING: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """One frozen value. Raises ValueError for a default_sampling name that is not served."""

    served_name: str  # the model's name in /v1/models
    config: Mapping[str, object] = field(default_factory=dict)  # shown by /server_info; no secrets
    # Sampling fields that a request leaves out, usually from the model's generation_config.json;
    # names and meanings as in NEUTRAL_SAMPLING, which stands for what is missing here too.
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    default_max_tokens: int | None = None  # if a request names no limit; None: what still fits
    max_tokens_cap: int | None = None  # the most that a request may ask for; None: what fits
    keys: KeyRing = field(default_factory=KeyRing)
    cors_origins: tuple[str, ...] = ()  # whose pages may call from a browser; "*" is every one
    max_body_bytes: int = 8 * 2**20
    keepalive_s: float = 15.0  # silence on a stream after which a comment is sent
    limits: TimeLimits = field(default_factory=TimeLimits)
    log_requests: bool = True  # a line in the log for each request
    profile_dir: str | None = None  # where /stop_profile writes; None: profiles are refused
    ready_when_collapsed: bool = True  # /ready is 200 also while the draft is worth nothing
    tool_parser: ToolParserName = "auto"
    reasoning_parser: ReasoningParserName = "none"
    grammar_timeout_s: float = 3.0  # for a grammar to be compiled; then it is refused
    stall_s: float = 60.0  # no progress for so long, with requests at hand: not ready

    def __post_init__(self) -> None:
        unknown = sorted(set(self.default_sampling) - set(NEUTRAL_SAMPLING))
        if unknown:
            accepted = ", ".join(NEUTRAL_SAMPLING)
            raise ValueError(f"default_sampling: found {', '.join(unknown)}; accepted: {accepted}")
