"""What the tokens of one answer are as text, gained bit by bit or there as a whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from engine import Finish, FinishReason, TokenEvent, TokenLogprob
from server.generation.stop_strings import AnswerText


@dataclass(frozen=True, slots=True)
class Delta:
    """What an answer gained. The last one of an answer carries its finish.

    Tokens may come without text, which is kept back while a character is unfinished or a stop
    string may have begun, and text may come without tokens at the end. Log probabilities that were
    asked for come with the tokens, one for each; those of the prompt with the first ones.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None
    seconds: float  # since the prompt was handed to the engine
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """All of it."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    seconds: float
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


Cut = Callable[[TokenEvent], Sequence[TokenEvent]]  # an event as those that are told


def uncut(event: TokenEvent) -> Sequence[TokenEvent]:
    return (event,)


def one_by_one(event: TokenEvent) -> Sequence[TokenEvent]:
    """The event as one for each of its tokens; the finish comes with the last."""
    last = max(1, len(event.token_ids)) - 1
    return [
        replace(
            event,
            token_ids=event.token_ids[i : i + 1],
            finish=event.finish if i == last else None,
            logprobs=event.logprobs[i : i + 1],
            prompt_logprobs=event.prompt_logprobs if i == 0 else (),
        )
        for i in range(last + 1)
    ]


def joined(events: Sequence[TokenEvent]) -> TokenEvent:
    """All events of an answer as one."""
    return replace(
        events[-1],
        token_ids=tuple(chain.from_iterable(event.token_ids for event in events)),
        logprobs=tuple(chain.from_iterable(event.logprobs for event in events)),
        prompt_logprobs=tuple(chain.from_iterable(event.prompt_logprobs for event in events)),
    )


def delta_of(event: TokenEvent, answer: AnswerText, seconds: float, *, echo: str) -> Delta:
    """Reads the event's tokens into the answer's text; echo stands before what that says."""
    spoken, finish = event.token_ids, event.finish
    if (
        finish is not None
        and finish.reason is FinishReason.STOP
        and isinstance(finish.matched, int)
    ):
        spoken = spoken[:-1]  # text excludes the stop, and this one is a token
    text = echo + "".join(answer.push(token_id) for token_id in spoken)
    if finish is not None:
        text += answer.flush()
    return Delta(
        text,
        event.token_ids,
        finish,
        seconds,
        logprobs=event.logprobs,
        prompt_logprobs=event.prompt_logprobs,
    )


def answer_of(delta: Delta) -> CompletionOutput:
    """Of the one delta of an answer that came as a whole."""
    assert delta.finish is not None, "an answer without an end"
    return CompletionOutput(
        delta.text,
        delta.token_ids,
        delta.finish,
        delta.seconds,
        logprobs=delta.logprobs,
        prompt_logprobs=delta.prompt_logprobs,
    )
