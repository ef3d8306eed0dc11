"""Defines engine options of a request in addition to plain sampling."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of a request; None is a missing field.

    min_tokens includes the field's name, for error messages.
    """

    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: tuple[str, int] = ("min_tokens", 0)
    num_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """The log probabilities that a request returns."""

    num_top: int  # likeliest tokens per position
    prompt_from: int | None = None  # first prompt position; None: no prompt logprobs
