"""Builds the messages and stream events of Anthropic's API."""

import json
from collections.abc import Iterator, Mapping, Sequence

from engine import Finish, FinishReason
from server.errors.api_errors import ApiError
from server.generation.deltas import Delta
from server.generation.input_processor import TokenizedRequest
from server.parsers.message_parts import (
    Content,
    Parser,
    Part,
    Reasoning,
    ToolCall,
    merge_parts,
    new_call_id,
)


def anthropic_model(name: str, max_len: int) -> dict[str, object]:
    """Return the served model in Anthropic's shape. It has no release date."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": max_len,
        "max_tokens": max_len,
    }


class MessageBuilder:
    """Builds the message of one request."""

    def __init__(self, message_id: str, model: str, tokenized: TokenizedRequest) -> None:
        self._message_id = message_id
        self._model = model
        self._tokenized = tokenized

    def message(self, parts: Sequence[Part], finish: Finish) -> dict[str, object]:
        stop = _stop(finish, has_calls=any(isinstance(part, ToolCall) for part in parts))
        return self._message([_block(part) for part in parts], stop, _usage(finish))

    def opening(self) -> dict[str, object]:
        """Return the message before any output. Cached tokens are known only at the end."""
        usage = {"input_tokens": len(self._tokenized.prompt_ids), "output_tokens": 0}
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
    """Encodes deltas as message_start, content blocks, message_delta and message_stop."""

    def __init__(self, builder: MessageBuilder, parser: Parser) -> None:
        self._builder = builder
        self._parser = parser
        self._has_calls = False
        self._has_started = False
        self._num_blocks = 0
        self._open: str | None = None  # type of the open block

    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        if not self._has_started:
            self._has_started = True
            yield {"type": "message_start", "message": self._builder.opening()}
        parts = self._parser.push(delta.text)
        if delta.finish is not None:
            parts = [*parts, *self._parser.flush()]
        for part in merge_parts(parts):
            yield from self._encode_part(part)
        if delta.finish is not None:
            yield from self._close_block()
            yield {
                "type": "message_delta",
                "delta": _stop(delta.finish, has_calls=self._has_calls),
                "usage": _usage(delta.finish),
            }

    def end(self) -> Iterator[Mapping[str, object]]:
        yield {"type": "message_stop"}

    def _encode_part(self, part: Part) -> Iterator[Mapping[str, object]]:
        match part:
            case Content(text):
                yield from self._open_block("text", {"type": "text", "text": ""})
                yield self._block_delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._open_block("thinking", _block(Reasoning("")))
                yield self._block_delta({"type": "thinking_delta", "thinking": text})
            case ToolCall(name, arguments):
                self._has_calls = True
                yield from self._open_block("tool_use", _block(ToolCall(name, "{}")))
                yield self._block_delta({"type": "input_json_delta", "partial_json": arguments})
                yield from self._close_block()

    def _open_block(self, kind: str, block: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Open a block of this type, unless one is open."""
        if self._open == kind:
            return
        yield from self._close_block()
        self._open = kind
        yield {"type": "content_block_start", "index": self._num_blocks, "content_block": block}

    def _block_delta(self, delta: Mapping[str, object]) -> Mapping[str, object]:
        return {"type": "content_block_delta", "index": self._num_blocks, "delta": delta}

    def _close_block(self) -> Iterator[Mapping[str, object]]:
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
            return {
                "type": "tool_use",
                "id": new_call_id(),
                "name": name,
                "input": _input(name, arguments),
            }


def _input(name: str, arguments: str) -> dict[str, object]:
    """Return a call's arguments. Raises ApiError where they are no value of this API."""
    try:
        value: dict[str, object] = json.loads(arguments)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(
            f"the model called '{name}' with arguments that are too large or too deep for this API",
            status=500,
            code="invalid_tool_call",
        ) from error
    return value


def _stop(finish: Finish, *, has_calls: bool) -> dict[str, object]:
    if has_calls and finish.reason is FinishReason.STOP:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if finish.reason is FinishReason.STOP and isinstance(finish.matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.matched}
    reasons = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens"}
    return {"stop_reason": reasons.get(finish.reason, finish.reason.value), "stop_sequence": None}


def _usage(finish: Finish) -> dict[str, object]:
    """Return the usage; input_tokens exclude cached tokens, which have a separate field."""
    return {
        "input_tokens": finish.num_prompt_tokens - finish.num_cached_tokens,
        "cache_read_input_tokens": finish.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": finish.num_output_tokens,
    }
