"""Makes valid bodies of every POST route, and random mutations of them."""

import json
import random
from typing import Any

import httpx

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^x+$"}, "b": {"$ref": "#/$defs/n"}},
    "required": ["a"],
    "$defs": {"n": {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": [None, "y"]}]}},
}
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {
        "text": "hi",
        "sampling_params": {
            "max_new_tokens": 3,
            "temperature": 0.5,
            "stop": ["x"],
            "seed": 1,
            "json_schema": SCHEMA,
        },
        "stream": False,
    },
    "/v1/completions": {
        "prompt": ["a", "b"],
        "max_tokens": 2,
        "stream": True,
        "top_p": 0.9,
        "structured_outputs": {"regex": "(a|b)+[0-9]{2,5}"},
    },
    "/v1/chat/completions": {
        "messages": [USER, {"role": "assistant", "content": "yes"}, USER],
        "max_tokens": 3,
        "tools": [TOOL],
        "tool_choice": "none",
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "stream_options": None,
        "chat_template_kwargs": {"a": 1},
    },
    "/v1/messages": {
        "model": "tiny",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 2,
        "system": "be brief",
        "stream": True,
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "max_output_tokens": 3,
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "tool_choice": "none",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        "include": ["message.output_text.logprobs"],
        "metadata": {"a": "b"},
        "store": True,
    },
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [USER]},
    "/tokenize": {"text": "hi"},
    "/detokenize": {"tokens": [5, 6]},
    "/abort_request": {"rid": "nobody"},
    "/set_context_kv": {"mode": "auto"},
}
JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, -(2**64), 0.5, -0.0, 1e308, 1e-320, "", "x",
    "\x00", "\ud800", "é👍", "a" * 3000, [], [[]], {}, [None], {"a": {"b": [1]}}, ["x"] * 300,
    {"type": "text"}, {"type": "image_url", "image_url": {}}, [1, 2, 3], [-1], [2**40], "null",
]  # fmt: skip


def mutated(rng: random.Random, value: Any) -> Any:
    """Return the value with one item changed, dropped, duplicated or wrapped."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        changed = dict(value)
        match rng.randrange(5):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(["", "x", "\ud800", key.upper(), key + "s"])] = value[key]
            case _:
                changed[key] = mutated(rng, value[key])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(rng, value[at]), *value[at:]]
    return rng.choice([*JUNK, [value], {"x": value}])


def content_of(rng: random.Random, body: Any) -> bytes:
    """Return JSON, sometimes with invalid bytes."""
    content = json.dumps(body).encode()
    if rng.random() < 0.05:
        at = rng.randrange(len(content) + 1)
        return content[:at] + bytes([rng.randrange(256)]) + content[at + rng.randrange(3) :]
    return content


def check(path: str, response: httpx.Response, sent: bytes) -> None:
    """Check for a 2xx or 4xx status and the API's error shape."""
    assert 200 <= response.status_code < 300 or 400 <= response.status_code < 500, (path, sent)
    if response.status_code < 300:
        assert '"error":{' not in response.text, (path, sent, response.text)
        return
    body = response.json()
    if path.startswith("/v1/messages"):
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"}), (path, sent)
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}, (path, sent)
    assert body["error"]["message"], (path, sent)
