"""Answers in the form of the OpenAI APIs, whole and in chunks."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine import Finish, FinishReason
from server.generation.deltas import CompletionOutput, Delta
from server.generation.input_processor import TokenizedRequest
from server.parsers.message_parts import Content, NewParser, Part, ToolCall, joined, read_whole
from server.protocol.openai import StreamOptions
from server.routes.chat_parts import ChatDeltas, message_of
from server.routes.openai_logprobs import LogprobFormatter
from server.routes.speculation import speculation_block

Deltas = Callable[[Part], Sequence[Mapping[str, object]]]


@dataclass(frozen=True, slots=True)
class Api:
    """What differs between the two APIs: words, and where a choice keeps what was said."""

    id_prefix: str
    whole: str
    chunk: str
    tell_whole: Callable[[Sequence[Part]], Mapping[str, object]]
    new_deltas: Callable[[], Deltas]  # what a part is in the chunks of one choice
    nothing: Mapping[str, object]  # of a chunk that gains no text
    in_chat_form: bool  # of log probabilities
    opening: Mapping[str, object] | None  # a choice's first chunk, if one comes before any text


def _text_of(parts: Sequence[Part]) -> Mapping[str, object]:
    return {"text": "".join(part.text for part in parts if isinstance(part, Content))}


def _new_chat_deltas() -> Deltas:
    deltas = ChatDeltas()
    return lambda part: [{"delta": delta} for delta in deltas.of(part)]


COMPLETION = Api(
    id_prefix="cmpl",
    whole="text_completion",
    chunk="text_completion",
    tell_whole=_text_of,
    new_deltas=lambda: lambda part: [_text_of([part])],
    nothing={"text": ""},
    in_chat_form=False,
    opening=None,
)
CHAT = Api(
    id_prefix="chatcmpl",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    tell_whole=lambda parts: {"message": message_of(parts)},
    new_deltas=_new_chat_deltas,
    nothing={"delta": {}},
    in_chat_form=True,
    opening={"delta": {"role": "assistant", "content": ""}},
)


class Form:
    """The parts of one response or stream that stay the same."""

    def __init__(
        self,
        api: Api,
        request_id: str,
        model: str,
        asks: Sequence[TokenizedRequest],
        *,
        new_parser: NewParser,
        with_speculation: bool,
        num_choices: int,
        logprobs: LogprobFormatter,
    ) -> None:
        """num_choices: answers of each prompt."""
        self.api = api
        self.asks = asks  # one for each choice
        self.new_parser = new_parser
        self.num_choices = num_choices
        self.logprobs = logprobs
        self._with_speculation = with_speculation
        self._common = {
            "id": f"{api.id_prefix}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, answers: Sequence[CompletionOutput]) -> dict[str, object]:
        choices = []
        for index, (ask, answer) in enumerate(zip(self.asks, answers, strict=True)):
            parts = read_whole(self.new_parser(), answer.text)
            has_called = any(isinstance(part, ToolCall) for part in parts)
            said = self.api.tell_whole(parts)
            told = self.logprobs.new(ask, in_chat_form=self.api.in_chat_form).of(answer)
            choices.append(
                self.choice(index, said, answer.finish, has_called=has_called, logprobs=told)
            )
        usage = usage_of([answer.finish for answer in answers], self.num_choices)
        return {**self._common, "object": self.api.whole, "choices": choices, "usage": usage}

    def chunk(self, choices: Sequence[Mapping[str, object]]) -> dict[str, object]:
        return {**self._common, "object": self.api.chunk, "choices": choices}

    def choice(
        self,
        index: int,
        said: Mapping[str, object],
        finish: Finish | None,
        *,
        has_called: bool = False,
        logprobs: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        """A choice as a whole, or with what it gained."""
        reason = finish.reason.value if finish else None
        if finish is not None and finish.reason is FinishReason.STOP and has_called:
            reason = "tool_calls"
        choice: dict[str, object] = {
            "index": index,
            **said,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        if finish is not None:
            choice["stop_reason"] = self._stop_asked_for(index, finish.matched)
            if self._with_speculation:
                choice["speculation"] = speculation_block(finish.speculation)
        return choice

    def _stop_asked_for(self, index: int, matched: int | str | None) -> int | str | None:
        """As vLLM tells it: the model's own end of text is no stop that anybody asked for."""
        if isinstance(matched, int) and matched not in self.asks[index].params.stop_token_ids:
            return None
        return matched


class OpenAIEncoder:
    """Chunks of what is new; the last of each choice has its finish reason."""

    def __init__(self, form: Form, streaming: StreamOptions) -> None:
        self._form = form
        self._streaming = streaming
        self._num_tokens = 0  # of all choices
        self._choices = [_ChoiceState(form, ask) for ask in form.asks]
        self._finishes: dict[int, Finish] = {}  # by the choice's index

    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        self._num_tokens += len(delta.token_ids)
        choice, finish = self._choices[index], delta.finish
        gains = choice.gains(delta)
        if finish is not None:
            self._finishes[index] = finish
        told = choice.told.of(delta)
        has_news = finish is not None or told is not None or self._streaming.token_by_token
        if not gains and has_news:
            gains = [self._form.api.nothing]
        opening = choice.opening()
        if opening is not None:
            yield self._chunk(self._form.choice(index, opening, None))
        for number, gain in enumerate(gains, start=1):
            end = finish if number == len(gains) else None
            yield self._chunk(
                self._form.choice(
                    index,
                    gain,
                    end,
                    has_called=choice.has_called,
                    logprobs=told if number == 1 else None,
                )
            )

    def end(self) -> Iterator[Mapping[str, object]]:
        if self._streaming.include_usage:
            finishes = [finish for _, finish in sorted(self._finishes.items())]
            yield {**self._form.chunk([]), "usage": usage_of(finishes, self._form.num_choices)}

    def _chunk(self, choice: Mapping[str, object]) -> Mapping[str, object]:
        chunk = self._form.chunk([choice])
        if self._streaming.continuous_usage_stats:
            return {**chunk, "usage": self._usage_so_far()}
        return {**chunk, "usage": None} if self._streaming.include_usage else chunk

    def _usage_so_far(self) -> dict[str, object]:
        prompt = sum(len(ask.prompt_ids) for ask in self._form.asks[:: self._form.num_choices])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._num_tokens,
            "total_tokens": prompt + self._num_tokens,
        }


class _ChoiceState:
    """What has to be remembered of one choice between its chunks."""

    def __init__(self, form: Form, ask: TokenizedRequest) -> None:
        self.told = form.logprobs.new(ask, in_chat_form=form.api.in_chat_form)
        self._parser = form.new_parser()
        self._deltas = form.api.new_deltas()
        self._opening = form.api.opening
        self.has_called = False

    def opening(self) -> Mapping[str, object] | None:
        """What comes first; once."""
        opening, self._opening = self._opening, None
        return opening

    def gains(self, delta: Delta) -> list[Mapping[str, object]]:
        """What a choice's chunks have to say of this delta, one by one."""
        parts = self._parser.push(delta.text)
        if delta.finish is not None:
            parts = [*parts, *self._parser.flush()]
        parts = joined(parts)
        self.has_called = self.has_called or any(isinstance(p, ToolCall) for p in parts)
        return [gain for part in parts for gain in self._deltas(part)]


def usage_of(finishes: Sequence[Finish], num_choices: int = 1) -> dict[str, object]:
    """Of finishes in the order of the choices; a prompt counts once, whatever its answers."""
    firsts = finishes[::num_choices]
    prompt = sum(finish.num_prompt_tokens for finish in firsts)
    output = sum(finish.num_output_tokens for finish in finishes)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {
            "cached_tokens": sum(finish.num_cached_tokens for finish in firsts)
        },
    }
