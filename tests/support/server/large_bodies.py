"""Builds bodies of a given size in which one list, object or text is far too large or wrong."""

import json
from collections.abc import Callable, Iterator
from typing import Any

USER = {"role": "user", "content": "hi"}
ITEMS: tuple[Any, ...] = (1, "", "ab" * 16, None, {"type": "bad"}, [[]], {"a": {"b": [1]}})

_ANTHROPIC = {"model": "tiny", "max_tokens": 1}
# Route, and the body around a list.
_AROUND: dict[str, tuple[str, Callable[[list[Any]], dict[str, Any]]]] = {
    "stop": ("/generate", lambda x: {"text": "a", "sampling_params": {"stop": x}}),
    "stop ids": ("/generate", lambda x: {"text": "a", "sampling_params": {"stop_token_ids": x}}),
    "sampling": ("/generate", lambda x: {"text": ["a"], "sampling_params": x}),
    "rid": ("/generate", lambda x: {"text": ["a"], "rid": x}),
    "text": ("/generate", lambda x: {"text": [*x, 5]}),
    "ids": ("/generate", lambda x: {"input_ids": [[*x, 5.5]]}),
    "chats": ("/generate", lambda x: {"messages": [x]}),
    "prompt": ("/v1/completions", lambda x: {"prompt": [*x, 5.5]}),
    "choice": ("/v1/completions", lambda x: {"prompt": "a", "guided_choice": [*x, 5]}),
    "structured": (
        "/v1/completions",
        lambda x: {"prompt": "a", "structured_outputs": {"choice": [*x, 5]}},
    ),
    "schema": ("/v1/completions", lambda x: {"prompt": "a", "json_schema": {"enum": [x] * 3}}),
    "schema text": (
        "/v1/completions",
        lambda x: {"prompt": "a", "json_schema": json.dumps({"enum": x}), "n": "x"},
    ),
    "bias": (
        "/v1/completions",
        lambda x: {"prompt": "a", "logit_bias": _object(x), "n": "x"},
    ),
    "structures": (
        "/v1/completions",
        lambda x: {"prompt": "a", "structured_outputs": _object(x), "n": "x"},
    ),
    "format": (
        "/v1/completions",
        lambda x: {
            "prompt": "a",
            "response_format": {"type": "json_schema", "json_schema": {"schema": _object(x)}},
        },
    ),
    "messages": ("/v1/chat/completions", lambda x: {"messages": x}),
    "parts": ("/v1/chat/completions", lambda x: {"messages": [{"role": "user", "content": x}]}),
    "calls": (
        "/v1/chat/completions",
        lambda x: {"messages": [USER, {"role": "assistant", "tool_calls": x}]},
    ),
    "arguments": (
        "/v1/chat/completions",
        lambda x: {"messages": [{"role": "assistant", "tool_calls": [_call(json.dumps(x))]}]},
    ),
    "tools": ("/v1/chat/completions", lambda x: {"messages": [USER], "tools": x}),
    "kwargs": (
        "/v1/chat/completions",
        lambda x: {
            "messages": [USER],
            "chat_template_kwargs": _object(x),
            "n": "x",
        },
    ),
    "parameters": (
        "/v1/chat/completions",
        lambda x: {"messages": [USER], "tools": [_tool(_object(x))], "n": "x"},
    ),
    "turns": ("/v1/messages", lambda x: {**_ANTHROPIC, "messages": x}),
    "blocks": ("/v1/messages", lambda x: {**_ANTHROPIC, "messages": [_turn(x)]}),
    "system": ("/v1/messages", lambda x: {**_ANTHROPIC, "messages": [USER], "system": x}),
    "input schemas": ("/v1/messages", lambda x: {**_ANTHROPIC, "messages": [USER], "tools": x}),
    "input schema": (
        "/v1/messages",
        lambda x: {
            **_ANTHROPIC,
            "messages": [USER],
            "tools": [{"name": "f", "input_schema": _object(x)}],
            "top_k": "x",
        },
    ),
    "thread": ("/v1/messages", lambda x: {**_ANTHROPIC, "messages": [USER], "thread": _object(x)}),
    "metadata": (
        "/v1/responses",
        lambda x: {"input": "a", "metadata": _object(x), "temperature": "x"},
    ),
    "stop sequences": (
        "/v1/messages",
        lambda x: {**_ANTHROPIC, "messages": [USER], "stop_sequences": [*x, 5]},
    ),
    "unserved": (
        "/v1/messages",
        lambda x: {**_ANTHROPIC, "messages": [USER], "mcp_servers": x},
    ),
    "items": ("/v1/responses", lambda x: {"input": x}),
    "item parts": ("/v1/responses", lambda x: {"input": [_turn(x)]}),
    "include": ("/v1/responses", lambda x: {"input": "a", "include": [*x, 5]}),
    "tokens": ("/detokenize", lambda x: {"tokens": [*x, -1]}),
    "name": ("/tokenize", lambda x: {json.dumps(x): 1}),
    "model": ("/v1/messages", lambda x: {**_ANTHROPIC, "messages": [USER], "model": json.dumps(x)}),
}


def large_bodies(size: int, *, all_kinds: bool = True) -> Iterator[tuple[str, str, bytes]]:
    """Yield (name, route, content) with about `size` bytes, for every list and kind of item.

    all_kinds: or else each list with one kind of item, by turns.
    """
    for number, (name, (route, around)) in enumerate(_AROUND.items()):
        for item in ITEMS if all_kinds else [ITEMS[number % len(ITEMS)]]:
            count = max(1, size // (len(json.dumps(item)) + 2))
            content = json.dumps(around([item] * count)).encode()
            if len(content) > size:
                count = max(1, count * size // len(content))
                content = json.dumps(around([item] * count)).encode()
            yield f"{name} of {json.dumps(item)}", route, content


def _turn(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _object(values: list[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values)}


def _tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def _call(arguments: str) -> dict[str, Any]:
    return {"function": {"name": "f", "arguments": arguments}}
