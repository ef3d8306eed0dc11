"""Builds the response objects and the stream events of the Responses API."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from engine import Finish, FinishReason
from server.errors.api_errors import Failure
from server.generation.deltas import CompletionOutput, Delta
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
from server.protocol.responses import ResponsesBody
from server.routes.logprobs import LogprobSerializer

Event = dict[str, Any]


class ResponseEncoder:
    """Encodes deltas as events, and keeps the response as it grows.

    A response that is sent whole is encoded from one delta with all of its tokens.
    """

    def __init__(
        self,
        response: Event,
        parser: Parser,
        *,
        logprobs: LogprobSerializer | None,
        count_tokens: Callable[[str], int],
        on_end: Callable[[Event], None],
        replica: str | None = None,
    ) -> None:
        """response: as `new_response` returns it. on_end gets the finished response.

        replica: as in `new_id`.
        """
        self.response = response
        self._parser = parser
        self._logprobs = logprobs
        self._count_tokens = count_tokens
        self._on_end = on_end
        self._replica = replica
        self._sequence = 0
        self._item: _OpenItem | None = None
        self._new_logprobs: list[object] = []  # of tokens whose text is still withheld
        self._reasoning = ""

    def encode(self, index: int, delta: Delta | CompletionOutput) -> Iterator[Mapping[str, object]]:
        if not self._sequence:
            yield self._event("response.created", response=self.response)
            yield self._event("response.in_progress", response=self.response)
        if self._logprobs is not None:
            entries = self._logprobs.chat(delta.logprobs)["content"]
            assert isinstance(entries, list)
            self._new_logprobs += entries
        parts = self._parser.push(delta.text)
        if delta.finish is not None:
            parts = [*parts, *self._parser.flush()]
        for part in merge_parts(parts):
            yield from self._add(part)
        if delta.finish is not None:
            yield from self._finish(delta.finish)

    def end(self) -> Iterator[Mapping[str, object]]:
        yield from ()

    def errors(self, failure: Failure) -> Sequence[Mapping[str, object]]:
        """Return the events after a failure."""
        code = failure.code or "server_error"
        self.response |= {
            "status": "failed",
            "error": {"code": code, "message": failure.message},
            "completed_at": None,
        }
        self._on_end(self.response)
        return [
            self._event("error", code=code, message=failure.message, param=failure.param),
            self._event("response.failed", response=self.response),
        ]

    def _finish(self, finish: Finish) -> Iterator[Event]:
        if self._item is None and not self.response["output"]:
            yield from self._open(_Message())  # clients expect a message
        status, kind, details = _STATUS[finish.reason]
        yield from self._close(status if status != "cancelled" else "incomplete")
        self.response |= {
            "status": status,
            "incomplete_details": details,
            "completed_at": int(time.time()) if status == "completed" else None,
            "usage": _usage(finish, self._count_tokens(self._reasoning) if self._reasoning else 0),
        }
        self._on_end(self.response)
        yield self._event(kind, response=self.response)

    def _add(self, part: Part) -> Iterator[Event]:
        match part:
            case Content(text):
                if not isinstance(self._item, _Message):
                    yield from self._open(_Message())
                yield from self._text(text)
            case Reasoning(text):
                self._reasoning += text
                if not isinstance(self._item, _ReasoningItem):
                    yield from self._open(_ReasoningItem())
                yield from self._text(text)
            case ToolCall(name, arguments):
                yield from self._open(_Call(name))
                yield from self._text(arguments)
                yield from self._close("completed")

    def _text(self, text: str) -> Iterator[Event]:
        assert self._item is not None
        self._item.text += text
        fields: Event = {"delta": text}
        if isinstance(self._item, _Message):
            fields["logprobs"], self._new_logprobs = self._new_logprobs, []
            self._item.logprobs += fields["logprobs"]
        yield self._item_event(f"{self._item.events}.delta", **fields)

    def _open(self, item: "_OpenItem") -> Iterator[Event]:
        yield from self._close("completed")
        item.id = new_id(item.prefix, self._replica)
        self._item = item
        yield self._output_item("response.output_item.added", "in_progress", is_done=False)
        if item.part() is not None:
            yield self._item_event("response.content_part.added", part=item.part())

    def _close(self, status: str) -> Iterator[Event]:
        item = self._item
        if item is None:
            return
        if isinstance(item, _Message):
            item.logprobs += self._new_logprobs
            self._new_logprobs = []
        yield self._item_event(f"{item.events}.done", **item.done_fields())
        if item.part() is not None:
            yield self._item_event("response.content_part.done", part=item.part())
        yield self._output_item("response.output_item.done", status, is_done=True)
        self.response["output"].append(item.json(status, is_done=True))
        self._item = None

    def _output_item(self, kind: str, status: str, *, is_done: bool) -> Event:
        assert self._item is not None
        item = self._item.json(status, is_done=is_done)
        return self._event(kind, output_index=len(self.response["output"]), item=item)

    def _item_event(self, kind: str, **fields: Any) -> Event:
        assert self._item is not None
        if self._item.part() is not None:
            fields["content_index"] = 0
        return self._event(
            kind, item_id=self._item.id, output_index=len(self.response["output"]), **fields
        )

    def _event(self, kind: str, **fields: Any) -> Event:
        """Return an event. A response in it is a copy, because the response still grows."""
        if "response" in fields:
            fields["response"] = {**fields["response"], "output": [*fields["response"]["output"]]}
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event


class _OpenItem:
    """An output item that is being generated."""

    prefix: str
    events: str  # beginning of the type of its text's events

    def __init__(self) -> None:
        self.id = ""  # of an item that is not open yet
        self.text = ""

    def part(self) -> Event | None:
        """Return the content part; None for a call, which has none."""
        raise NotImplementedError

    def done_fields(self) -> Event:
        return {"text": self.text}

    def json(self, status: str, *, is_done: bool) -> Event:
        raise NotImplementedError


class _Message(_OpenItem):
    prefix = "msg"
    events = "response.output_text"

    def __init__(self) -> None:
        super().__init__()
        self.logprobs: list[object] = []

    def part(self) -> Event:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": [*self.logprobs],
        }

    def done_fields(self) -> Event:
        return {"text": self.text, "logprobs": [*self.logprobs]}

    def json(self, status: str, *, is_done: bool) -> Event:
        content = [self.part()] if is_done else []
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }


class _ReasoningItem(_OpenItem):
    prefix = "rs"
    events = "response.reasoning_text"

    def part(self) -> Event:
        return {"type": "reasoning_text", "text": self.text}

    def json(self, status: str, *, is_done: bool) -> Event:
        content = [self.part()] if is_done else []
        return {
            "id": self.id,
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": content,
        }


class _Call(_OpenItem):
    prefix = "fc"
    events = "response.function_call_arguments"

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._call_id = f"call_{new_call_id()}"

    def part(self) -> None:
        return None

    def done_fields(self) -> Event:
        return {"arguments": self.text, "name": self._name}

    def json(self, status: str, *, is_done: bool) -> Event:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.text,
        }


# Reason of the finish -> status, type of the last event, incomplete_details.
_STATUS: Mapping[FinishReason, tuple[str, str, Event | None]] = {
    FinishReason.STOP: ("completed", "response.completed", None),
    FinishReason.LENGTH: (
        "incomplete",
        "response.incomplete",
        {"reason": "max_output_tokens"},
    ),
    FinishReason.ABORT: ("cancelled", "response.incomplete", None),
}


def new_id(prefix: str, replica: str | None) -> str:
    """Make an id; in a deployment it carries the name of its replica."""
    own = uuid4().hex if replica is None else f"{replica}-{uuid4().hex}"
    return f"{prefix}_{own}"


def new_response(
    body: ResponsesBody, tokenized: TokenizedRequest, *, model: str, is_stored: bool
) -> Event:
    """Return the object of a response before any output."""
    request = body.model_dump(
        exclude_none=True,
        by_alias=True,
        include={"metadata", "instructions", "previous_response_id", "tool_choice", "tools"},
    )
    text = (body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}) or {}
    params = tokenized.params
    return {
        "id": tokenized.names[0],
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": None,
        },
        "service_tier": "default",
        "store": is_stored,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        **request,
    }


def _usage(finish: Finish, num_reasoning_tokens: int) -> dict[str, object]:
    return {
        "input_tokens": finish.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": finish.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": finish.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": finish.num_prompt_tokens + finish.num_output_tokens,
    }
