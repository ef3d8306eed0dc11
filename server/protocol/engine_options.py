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
    token_ids: tuple[int, ...] = ()  # further tokens of each position


@dataclass(frozen=True, slots=True)
class ReasoningRequest:
    """What a request says about reasoning, and the field that says it."""

    field: str
    effort: str | None  # how much; None: the model's own
    is_on: bool

    def template_kwargs(self) -> dict[str, object]:
        """Return the variables that chat templates of reasoning models read."""
        kwargs: dict[str, object] = {"enable_thinking": self.is_on}
        if self.effort is not None and self.is_on:
            kwargs["reasoning_effort"] = self.effort
        return kwargs


def effort_of(field: str, effort: str | None) -> ReasoningRequest | None:
    """Return the request of an effort in OpenAI's words; "none" is no reasoning."""
    return None if effort is None else ReasoningRequest(field, effort, effort != "none")
