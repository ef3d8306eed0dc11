"""Defines fields that change logits, and the number of choices."""

import re
from typing import Annotated, Any

from pydantic import Field, field_validator

from server.errors.validation_errors import field_error, quote
from server.protocol.common import OneOrMoreStops, as_list
from server.protocol.engine_options import EngineOptions
from server.protocol.structured_output import GrammarFields
from server.text.stop_regex import MAX_STATES, StopRegex

MAX_CHOICES = 128  # of one prompt
_MAX_BIASES = 1024  # tokens in one logit_bias
_BIAS = 100  # largest absolute bias
_TOKEN_ID = re.compile(r"\d{1,18}", re.ASCII)


def check_return_rounds(is_requested: bool | None, is_stream: bool | None) -> None:
    """Refuse return_rounds in a request that is not streamed: rounds belong to its events."""
    if is_requested and not is_stream:
        raise field_error("kind", "return_rounds", "is only accepted with 'stream': true")


class OptionFields(GrammarFields):
    """Fields with the same name in /generate and the OpenAI routes."""

    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    # Token ids are strings, because JSON keys are strings.
    logit_bias: Annotated[dict[str, Any], Field(max_length=_MAX_BIASES)] | None = Field(
        None,
        json_schema_extra={
            "propertyNames": {"pattern": "^[0-9]{1,18}$"},
            "additionalProperties": {"type": "number", "minimum": -_BIAS, "maximum": _BIAS},
        },
    )
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    num_draft_tokens: int | None = Field(None, ge=0)  # the most that a round verifies; 0: no draft
    stop_regex: OneOrMoreStops = None
    no_stop_trim: bool | None = None  # the text keeps the stop

    @field_validator("logit_bias")
    @classmethod
    def _check_logit_bias(cls, bias: dict[str, Any] | None) -> dict[str, Any] | None:
        if bias is None:
            return None
        for name, value in bias.items():
            if not _TOKEN_ID.fullmatch(name):
                message = f"must be a token id, as a string of digits; found {quote(name)}"
                raise field_error("token_id", quote(name)[1:-1], message)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not -_BIAS <= value <= _BIAS:
                message = f"must be a number from -{_BIAS} to {_BIAS}; found {quote(value)}"
                raise field_error("bias", name, message)
        if len({int(name) for name in bias}) < len(bias):
            raise ValueError("must contain each token once")
        return bias

    @field_validator("stop_regex")
    @classmethod
    def _check_stop_regex(cls, patterns: str | list[str] | None) -> str | list[str] | None:
        regexes = [_compiled(pattern) for pattern in cls.check_stops(as_list(patterns))]
        num_states = sum(len(regex.tests) for regex in regexes)
        if num_states > MAX_STATES:
            raise ValueError(
                f"must match at most {MAX_STATES} characters in all, with repetitions written out; "
                f"found {num_states}"
            )
        return patterns

    @property
    def stop_regexes(self) -> tuple[StopRegex, ...]:
        return tuple(map(StopRegex.compile, as_list(self.stop_regex)))

    @property
    def keeps_stop(self) -> bool:
        return bool(self.no_stop_trim)

    @property
    def num_choices(self) -> int:
        return self.n or 1

    def min_length(self) -> tuple[str, int | None]:
        """Return the name and value of the field for the minimum of output tokens."""
        raise NotImplementedError

    def engine_options(self) -> EngineOptions:
        name, min_tokens = self.min_length()
        return EngineOptions(
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple((int(k), float(v)) for k, v in (self.logit_bias or {}).items()),
            min_tokens=(name, min_tokens or 0),
            num_draft_tokens=self.num_draft_tokens,
        )


def _compiled(pattern: str) -> StopRegex:
    try:
        return StopRegex.compile(pattern)
    except ValueError as error:
        raise ValueError(f"{quote(pattern)} {error}") from None
