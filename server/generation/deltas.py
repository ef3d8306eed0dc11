"""Defines the text output of one completion: as deltas and as a whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from engine import Finish, FinishReason, Round, TokenEvent, TokenLogprob
from server.generation.stop_strings import OutputText


@dataclass(frozen=True, slots=True)
class Delta:
    """New text and tokens of one completion. The last delta carries its finish.

    A delta may have tokens without text: text is withheld while a character is incomplete or a
    stop string may have begun. The last one may have text without tokens. Requested log
    probabilities come with their tokens, those of the prompt with the first tokens.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None
    seconds: float  # since the request was submitted to the engine
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """A finished completion; fields as in Delta."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    seconds: float
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


EventSplit = Callable[[TokenEvent], Sequence[TokenEvent]]  # one event as the events to send


def unsplit(event: TokenEvent) -> Sequence[TokenEvent]:
    return (event,)


def split_by_token(event: TokenEvent) -> Sequence[TokenEvent]:
    """Split an event into one per token; the last one has the finish."""
    last = max(1, len(event.token_ids)) - 1
    rounds = [
        replace(each, num_tokens=1, position=each.position + i)
        for each in event.rounds
        for i in range(each.num_tokens)
    ]
    return [
        replace(
            event,
            token_ids=event.token_ids[i : i + 1],
            finish=event.finish if i == last else None,
            logprobs=event.logprobs[i : i + 1],
            prompt_logprobs=event.prompt_logprobs if i == 0 else (),
            rounds=tuple(rounds[i : i + 1]),
        )
        for i in range(last + 1)
    ]


def join_events(events: Sequence[TokenEvent]) -> TokenEvent:
    """Join all events of a request into one."""
    return replace(
        events[-1],
        token_ids=tuple(chain.from_iterable(event.token_ids for event in events)),
        logprobs=tuple(chain.from_iterable(event.logprobs for event in events)),
        prompt_logprobs=tuple(chain.from_iterable(event.prompt_logprobs for event in events)),
        rounds=tuple(chain.from_iterable(event.rounds for event in events)),
    )


def without_output(event: TokenEvent) -> TokenEvent:
    """Return the event of a request that only scores its prompt: without the output token."""
    finish = event.finish
    if finish is not None:
        finish = replace(finish, reason=FinishReason.LENGTH, matched=None, num_output_tokens=0)
    return replace(event, token_ids=(), logprobs=(), rounds=(), finish=finish)


def delta_of(
    event: TokenEvent, output: OutputText, seconds: float, *, echo: str, keeps_stop: bool = False
) -> Delta:
    """Append the event's tokens to the output text; the delta's text begins with echo.

    With keeps_stop the text includes the stop token; `output` includes a stop string by itself.
    """
    token_ids, finish = event.token_ids, event.finish
    if (
        finish is not None
        and not keeps_stop
        and finish.reason is FinishReason.STOP
        and isinstance(finish.matched, int)
    ):
        token_ids = token_ids[:-1]  # text excludes the stop token
    text = echo + "".join(output.push(token_id) for token_id in token_ids)
    if finish is not None:
        text += output.flush()
    return Delta(
        text,
        event.token_ids,
        finish,
        seconds,
        logprobs=event.logprobs,
        prompt_logprobs=event.prompt_logprobs,
        rounds=event.rounds,
    )


def completion_of(delta: Delta) -> CompletionOutput:
    """Return the completion of a delta that has all of its tokens."""
    assert delta.finish is not None, "a completion without a finish"
    return CompletionOutput(
        delta.text,
        delta.token_ids,
        delta.finish,
        delta.seconds,
        logprobs=delta.logprobs,
        prompt_logprobs=delta.prompt_logprobs,
    )
