"""Answers in the form of Anthropic's API, whole and in events."""

import json
from collections.abc import Iterator, Mapping, Sequence

from engine import Finish, FinishReason
from server.generation.deltas import Delta
from server.generation.input_processor import TokenizedRequest
from server.parsers.message_parts import Content, Parser, Part, Reasoning, ToolCall, joined
from server.routes.chat_parts import new_call_id


class Form:
    """The parts of one message that stay the same."""

    def __init__(self, message_id: str, model: str, ask: TokenizedRequest) -> None:
        self._message_id = message_id
        self._model = model
        self._ask = ask

    def whole(self, parts: Sequence[Part], finish: Finish) -> dict[str, object]:
        stop = _stop(finish, has_called=any(isinstance(part, ToolCall) for part in parts))
        return self._message([_block(part) for part in parts], stop, _usage(finish))

    def opening(self) -> dict[str, object]:
        """The message before anything is said. What the cache spared is known at the end."""
        usage = {"input_tokens": len(self._ask.prompt_ids), "output_tokens": 0}
        return self._message([], {"stop_reason": None, "stop_sequence": None}, usage)

    def _message(
        self,
        content: list[dict[str, object]],
        stop: Mapping[str, object],
        usage: Mapping[str, object],
    ) -> dict[str, object]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **stop,
            "usage": usage,
        }


class MessageEncoder:
    """message_start, the blocks with what they gain, message_delta with the end, message_stop."""

    def __init__(self, form: Form, parser: Parser) -> None:
        self._form = form
        self._parser = parser
        self._has_called = False
        self._has_begun = False
        self._num_blocks = 0
        self._open: str | None = None  # the kind of block that is being told

    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        if not self._has_begun:
            self._has_begun = True
            yield {"type": "message_start", "message": self._form.opening()}
        parts = self._parser.push(delta.text)
        if delta.finish is not None:
            parts = [*parts, *self._parser.flush()]
        for part in joined(parts):
            yield from self._tell(part)
        if delta.finish is not None:
            yield from self._close()
            yield {
                "type": "message_delta",
                "delta": _stop(delta.finish, has_called=self._has_called),
                "usage": _usage(delta.finish),
            }

    def end(self) -> Iterator[Mapping[str, object]]:
        yield {"type": "message_stop"}

    def _tell(self, part: Part) -> Iterator[Mapping[str, object]]:
        match part:
            case Content(text):
                yield from self._into("text", {"type": "text", "text": ""})
                yield self._gain({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._into("thinking", _block(Reasoning("")))
                yield self._gain({"type": "thinking_delta", "thinking": text})
            case ToolCall(_, arguments):
                self._has_called = True
                yield from self._into("tool_use", {**_block(part), "input": {}})
                yield self._gain({"type": "input_json_delta", "partial_json": arguments})
                yield from self._close()

    def _into(self, kind: str, block: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Open a block of this kind, unless one is open."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        yield {"type": "content_block_start", "index": self._num_blocks, "content_block": block}

    def _gain(self, delta: Mapping[str, object]) -> Mapping[str, object]:
        return {"type": "content_block_delta", "index": self._num_blocks, "delta": delta}

    def _close(self) -> Iterator[Mapping[str, object]]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._num_blocks}
            self._num_blocks += 1
            self._open = None


def _block(part: Part) -> dict[str, object]:
    match part:
        case Content(text):
            return {"type": "text", "text": text}
        case Reasoning(text):
            return {"type": "thinking", "thinking": text, "signature": ""}
        case ToolCall(name, arguments):
            called = json.loads(arguments)
            return {"type": "tool_use", "id": new_call_id(), "name": name, "input": called}


def _stop(finish: Finish, *, has_called: bool) -> dict[str, object]:
    if has_called and finish.reason is FinishReason.STOP:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if finish.reason is FinishReason.STOP and isinstance(finish.matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.matched}
    reasons = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens"}
    return {"stop_reason": reasons.get(finish.reason, finish.reason.value), "stop_sequence": None}


def _usage(finish: Finish) -> dict[str, object]:
    """input_tokens leave out what the prefix cache spared, which stands beside them."""
    return {
        "input_tokens": finish.num_prompt_tokens - finish.num_cached_tokens,
        "cache_read_input_tokens": finish.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": finish.num_output_tokens,
    }
