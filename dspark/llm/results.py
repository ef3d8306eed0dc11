"""What `LLM` returns: completions of prompts, their choices, and the deltas of a stream."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine import Finish, FinishReason, TokenLogprob
from server.generation.deltas import CompletionOutput, Delta
from server.parsers.message_parts import Content, Parser, Part, Reasoning, ToolCall, parse_complete

Prompt = str | Sequence[int] | Sequence[dict[str, Any]]  # text, token ids, or a chat's messages


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a prompt.

    text excludes the stop that ended it; token_ids include it. finish_reason is "stop", "length",
    "abort", or "tool_calls" where the answer of a chat calls tools.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None  # the stop that matched: a token id or a stop string
    logprobs: tuple[TokenLogprob, ...] | None  # one for each of token_ids; None without them
    accept_length: float  # tokens committed per round, bonus included; 0.0 without a round
    num_draft_tokens: int
    seconds: float
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """The answers to one prompt, and the prompt. Fields of an answer are those of the first."""

    prompt: Prompt  # as it was given
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprob, ...] | None  # from logprob_start_len on; None without
    num_cached_tokens: int  # of the prompt, taken from the prefix cache
    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        return self.choices[0].logprobs

    @property
    def accept_length(self) -> float:
        return self.choices[0].accept_length

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one choice of a stream gained. Its last delta carries finish_reason.

    Tokens may come without text while a character is unfinished or a stop string may have begun.
    """

    index: int  # of the choice
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: str | None
    accept_length: float | None  # with finish_reason
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()  # that are complete now


def choice_of(
    index: int, output: CompletionOutput, parser: Parser, *, with_logprobs: bool
) -> Choice:
    """Build a choice from a complete answer."""
    parts = parse_complete(parser, output.text)
    finish, calls = output.finish, _calls(parts)
    return Choice(
        index=index,
        text=_text(parts, Content),
        token_ids=output.token_ids,
        finish_reason=_finish_reason(finish, has_called=bool(calls)),
        stop_reason=finish.matched,
        logprobs=output.logprobs if with_logprobs else None,
        accept_length=finish.speculation.mean_accept_length,
        num_draft_tokens=finish.speculation.num_draft_tokens,
        seconds=output.seconds,
        reasoning=_text(parts, Reasoning),
        tool_calls=calls,
    )


class StreamedChoice:
    """Builds the deltas of one choice of a stream."""

    def __init__(self, index: int, parser: Parser, *, with_logprobs: bool) -> None:
        self._index = index
        self._parser = parser
        self._with_logprobs = with_logprobs
        self._has_called = False

    def delta_of(self, delta: Delta) -> TextDelta:
        """Read the next delta of this choice."""
        parts = self._parser.push(delta.text)
        finish = delta.finish
        if finish is not None:
            parts = [*parts, *self._parser.flush()]
        calls = _calls(parts)
        self._has_called = self._has_called or bool(calls)
        return TextDelta(
            index=self._index,
            text=_text(parts, Content),
            token_ids=delta.token_ids,
            logprobs=delta.logprobs if self._with_logprobs else None,
            finish_reason=_finish_reason(finish, has_called=self._has_called) if finish else None,
            accept_length=finish.speculation.mean_accept_length if finish else None,
            reasoning=_text(parts, Reasoning),
            tool_calls=calls,
        )


def _text(parts: Iterable[Part], kind: type[Content] | type[Reasoning]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def _calls(parts: Iterable[Part]) -> tuple[ToolCall, ...]:
    return tuple(part for part in parts if isinstance(part, ToolCall))


def _finish_reason(finish: Finish, *, has_called: bool) -> str:
    if has_called and finish.reason is FinishReason.STOP:
        return "tool_calls"
    return finish.reason.value
