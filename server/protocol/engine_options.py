"""Options of a request beyond plain sampling, as the engine calls them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None is what a client left out.

    min_tokens comes with the client's name for it, for refusals.
    """

    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: tuple[str, int] = ("min_tokens", 0)


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """What a client wants to know of its tokens."""

    num_top: int  # of the likeliest tokens beside each
    prompt_from: int | None = None  # first prompt position to tell of; None: none of them
