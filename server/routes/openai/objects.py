"""Builds the response objects and stream chunks of the OpenAI completion APIs."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import Finish, FinishReason
from server.generation.deltas import CompletionOutput, Delta
from server.generation.input_processor import TokenizedRequest
from server.parsers.message_parts import (
    Content,
    NewParser,
    Part,
    ToolCall,
    merge_parts,
    parse_complete,
)
from server.protocol.openai import StreamOptions
from server.routes.openai.chat_parts import ChatDeltas, message_of
from server.routes.openai.logprobs import NewLogprobs
from server.routes.openai.usage import speculation_of, usage_of
from server.routes.rounds import round_object

PartDeltas = Callable[[Part], Sequence[Mapping[str, object]]]


@dataclass(frozen=True, slots=True)
class Api:
    """The differences between completions and chat completions."""

    id_prefix: str
    response_object: str
    chunk_object: str
    output_fields: Callable[[Sequence[Part]], Mapping[str, object]]  # of a choice
    new_deltas: Callable[[], PartDeltas]  # converts the parts of one choice to chunk fields
    empty_delta: Mapping[str, object]  # of a chunk without text
    opening: Mapping[str, object] | None  # of a choice's first chunk, before any text
    has_one_prompt: bool  # prompt_logprobs is a field of the response, not of its choices


def _text_of(parts: Sequence[Part]) -> Mapping[str, object]:
    return {"text": "".join(part.text for part in parts if isinstance(part, Content))}


def _new_chat_deltas() -> PartDeltas:
    deltas = ChatDeltas()
    return lambda part: [{"delta": delta} for delta in deltas.of(part)]


COMPLETION = Api(
    id_prefix="cmpl",
    response_object="text_completion",
    chunk_object="text_completion",
    output_fields=_text_of,
    new_deltas=lambda: lambda part: [_text_of([part])],
    empty_delta={"text": ""},
    opening=None,
    has_one_prompt=False,
)
CHAT = Api(
    id_prefix="chatcmpl",
    response_object="chat.completion",
    chunk_object="chat.completion.chunk",
    output_fields=lambda parts: {"message": message_of(parts)},
    new_deltas=_new_chat_deltas,
    empty_delta={"delta": {}},
    opening={"delta": {"role": "assistant", "content": ""}},
    has_one_prompt=True,
)


class ResponseBuilder:
    """Builds the response or the chunks of one HTTP request."""

    def __init__(
        self,
        api: Api,
        request_id: str,
        model: str,
        tokenized: Sequence[TokenizedRequest],
        *,
        new_parser: NewParser,
        new_logprobs: NewLogprobs,
        with_speculation: bool,
        with_rounds: bool,
        num_choices: int,
    ) -> None:
        """tokenized: one request per choice. num_choices: choices of each prompt."""
        self.api = api
        self.tokenized = tokenized
        self.new_parser = new_parser
        self.new_logprobs = new_logprobs
        self.num_choices = num_choices
        self.with_rounds = with_rounds
        self._with_speculation = with_speculation
        self._common = {
            "id": f"{api.id_prefix}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }

    def response(self, outputs: Sequence[CompletionOutput]) -> dict[str, object]:
        choices: list[dict[str, object]] = []
        prompts: list[list[Any] | None] = []
        for index, (tokenized, output) in enumerate(zip(self.tokenized, outputs, strict=True)):
            parts = parse_complete(self.new_parser(), output.text)
            logprobs = self.new_logprobs(tokenized)
            choices.append(
                self.choice(
                    index,
                    self.api.output_fields(parts),
                    output.finish,
                    has_calls=any(isinstance(part, ToolCall) for part in parts),
                    logprobs=logprobs.of(output),
                )
            )
            prompts.append(logprobs.of_prompt(output))
        usage = usage_of([output.finish for output in outputs], self.num_choices)
        response = self._with_prompts(choices, prompts)
        return {**self._common, "object": self.api.response_object, **response, "usage": usage}

    def chunk(
        self, choices: Sequence[Mapping[str, object]], prompt_logprobs: list[Any] | None = None
    ) -> dict[str, object]:
        chunk = self._with_prompts(choices, [prompt_logprobs])
        return {**self._common, "object": self.api.chunk_object, **chunk}

    def _with_prompts(
        self, choices: Sequence[Mapping[str, object]], prompts: Sequence[list[Any] | None]
    ) -> Mapping[str, object]:
        """Return the choices with prompt_logprobs: in each choice, or once next to a chat's."""
        if all(prompt is None for prompt in prompts):
            return {"choices": choices}
        if self.api.has_one_prompt:
            return {"choices": choices, "prompt_logprobs": prompts[0]}
        pairs = zip(choices, prompts, strict=True)
        return {"choices": [{**choice, "prompt_logprobs": prompt} for choice, prompt in pairs]}

    def choice(
        self,
        index: int,
        fields: Mapping[str, object],
        finish: Finish | None,
        *,
        has_calls: bool = False,
        logprobs: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        """Return a choice of a response or of a chunk."""
        reason = finish.reason.value if finish else None
        if finish is not None and finish.reason is FinishReason.STOP and has_calls:
            reason = "tool_calls"
        choice: dict[str, object] = {
            "index": index,
            **fields,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        if finish is not None:
            choice["stop_reason"] = self._stop_reason(index, finish.matched)
            choice["matched_stop"] = finish.matched  # SGLang's name, with the end of text too
            if self._with_speculation:
                choice["speculation"] = speculation_of(finish.speculation)
        return choice

    def _stop_reason(self, index: int, matched: int | str | None) -> int | str | None:
        """Return the requested stop that matched; None for the model's end of text, as in vLLM."""
        if isinstance(matched, int) and matched not in self.tokenized[index].params.stop_token_ids:
            return None
        return matched


class OpenAIEncoder:
    """Encodes deltas as chunks; the last chunk of each choice has its finish reason."""

    def __init__(self, builder: ResponseBuilder, options: StreamOptions) -> None:
        self._builder = builder
        self._options = options
        self._num_tokens = 0  # of all choices
        self._choices = [_ChoiceStream(builder, tokenized) for tokenized in builder.tokenized]
        self._finishes: dict[int, Finish] = {}  # by choice index

    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        self._num_tokens += len(delta.token_ids)
        choice, finish = self._choices[index], delta.finish
        deltas = choice.deltas(delta)
        if finish is not None:
            self._finishes[index] = finish
        logprobs, prompt = choice.logprobs.of(delta), choice.logprobs.of_prompt(delta)
        if index > 0 and self._builder.api.has_one_prompt:
            prompt = None
        with_rounds = self._builder.with_rounds
        rounds = [round_object(each) for each in delta.rounds] if with_rounds else []
        needs_chunk = (
            finish is not None
            or logprobs is not None
            or prompt is not None
            or bool(rounds)
            or self._options.token_by_token
        )
        if not deltas and needs_chunk:
            deltas = [self._builder.api.empty_delta]
        opening = choice.take_opening()
        if opening is not None:
            yield self._chunk(self._builder.choice(index, opening, None))
        for number, fields in enumerate(deltas, start=1):
            chunk = self._builder.choice(
                index,
                fields,
                finish if number == len(deltas) else None,
                has_calls=choice.has_calls,
                logprobs=logprobs if number == 1 else None,
            )
            if with_rounds:
                chunk["rounds"] = rounds if number == 1 else []
            yield self._chunk(chunk, prompt if number == 1 else None)

    def end(self) -> Iterator[Mapping[str, object]]:
        if self._options.include_usage:
            finishes = [finish for _, finish in sorted(self._finishes.items())]
            usage = usage_of(finishes, self._builder.num_choices)
            yield {**self._builder.chunk([]), "usage": usage}

    def _chunk(
        self, choice: Mapping[str, object], prompt_logprobs: list[Any] | None = None
    ) -> Mapping[str, object]:
        chunk = self._builder.chunk([choice], prompt_logprobs)
        if self._options.continuous_usage_stats:
            return {**chunk, "usage": self._usage_so_far()}
        return {**chunk, "usage": None} if self._options.include_usage else chunk

    def _usage_so_far(self) -> dict[str, object]:
        firsts = self._builder.tokenized[:: self._builder.num_choices]
        num_prompt = sum(len(tokenized.prompt_ids) for tokenized in firsts)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_tokens,
            "total_tokens": num_prompt + self._num_tokens,
        }


class _ChoiceStream:
    """The state of one choice between its chunks."""

    def __init__(self, builder: ResponseBuilder, tokenized: TokenizedRequest) -> None:
        self.logprobs = builder.new_logprobs(tokenized)
        self._parser = builder.new_parser()
        self._part_deltas = builder.api.new_deltas()
        self._opening = builder.api.opening
        self.has_calls = False

    def take_opening(self) -> Mapping[str, object] | None:
        """Return the fields of the first chunk, once."""
        opening, self._opening = self._opening, None
        return opening

    def deltas(self, delta: Delta) -> list[Mapping[str, object]]:
        """Return the fields of the chunks for this delta."""
        parts = self._parser.push(delta.text)
        if delta.finish is not None:
            parts = [*parts, *self._parser.flush()]
        parts = merge_parts(parts)
        self.has_calls = self.has_calls or any(isinstance(p, ToolCall) for p in parts)
        return [fields for part in parts for fields in self._part_deltas(part)]
