"""Constrained tool calls, with an engine that follows the token mask."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine import Request
from tests.server.conftest import Connect
from tests.support.server.byte_text import EOS, NUM_IDS
from tests.support.server.fakes import FakeEngine
from tests.support.server.responses import events_of

USER = {"role": "user", "content": "hi"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PAGE = {"type": "object", "properties": {"page": {"enum": [7]}}, "required": ["page"]}
PAGE["additionalProperties"] = False
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def tool(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [tool("weather", CITY), tool("book", PAGE)]


def follower(request: Request, *, begins: str = "") -> Iterator[int]:
    """Generate `begins`, then the allowed tokens that end an output soonest."""
    mask = request.token_mask
    assert mask is not None
    for byte in begins.encode():
        yield byte
        mask.commit(byte)
    for _ in range(300):
        words = np.zeros(-(-NUM_IDS // 32), dtype=np.uint32)
        mask.fill([], words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
        wanted = [EOS, *b'"}]<>hbw']
        token_id = next((t for t in wanted if t in allowed), allowed[0])
        yield token_id
        if mask.commit(token_id):
            return
    raise AssertionError("the mask does not come to an end")


def follow(request: Request) -> list[int]:
    return list(follower(request))


def send(connect: Connect, route: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    client = connect(FakeEngine(follow, max_len=2000), **{"tool_parser": "hermes", **options})
    response = client.post(route, json={"model": "tiny", "max_tokens": 400, **body})
    assert response.status_code == 200, response.text
    response_body: dict[str, Any] = response.json()
    return response_body


def chat(connect: Connect, **body: Any) -> dict[str, Any]:
    response_body = send(connect, CHAT, {"messages": [USER], "tools": TOOLS, **body})
    choice: dict[str, Any] = response_body["choices"][0]
    return choice


@pytest.mark.parametrize("parser", ["hermes", "mistral", "llama3_json"])
def test_a_required_call_is_generated_in_every_format(connect: Connect, parser: str) -> None:
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}
    choice = send(connect, CHAT, body, tool_parser=parser)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in ("weather", "book")
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


HUGE = '{"n": 9e999, "d": ' + "[" * 60 + "]" * 60


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parser", "begins"),
    [
        ("hermes", '<tool_call>\n{"name": "any", "arguments": '),
        ("mistral", '[TOOL_CALLS][{"name": "any", "arguments": '),
        ("llama3_json", '{"name": "any", "parameters": '),
    ],
)
def test_a_required_call_is_a_call_for_every_text_of_its_grammar(
    connect: Connect, parser: str, begins: str, stream: bool
) -> None:
    engine = FakeEngine(lambda r: list(follower(r, begins=begins + HUGE)), max_len=2000)
    client = connect(engine, tool_parser=parser)
    body = {"messages": [USER], "tools": [tool("any", {})], "tool_choice": "required"}
    response = client.post(CHAT, json={**body, "max_tokens": 900, "stream": stream})
    if stream:
        choices = [choice for event in events_of(response.text) for choice in event["choices"]]
        calls = [call for c in choices for call in c["delta"].get("tool_calls", [])]
        arguments = "".join(call["function"]["arguments"] for call in calls)
        assert not any(choice["delta"].get("content") for choice in choices)
    else:
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        assert choice["message"]["content"] is None
    assert arguments == HUGE + "}"


def test_arguments_that_anthropics_form_cannot_hold_are_an_error(connect: Connect) -> None:
    begins = '<tool_call>\n{"name": "any", "arguments": ' + HUGE
    engine = FakeEngine(lambda r: list(follower(r, begins=begins)), max_len=2000)
    tools = [{"name": "any", "input_schema": {"type": "object"}}]
    body = {"model": "tiny", "max_tokens": 900, "messages": [USER], "tools": tools}
    client = connect(engine, tool_parser="hermes")
    response = client.post(MESSAGES, json={**body, "tool_choice": {"type": "any"}})
    assert response.status_code == 500
    assert "too large or too deep" in response.json()["error"]["message"]
    streamed = client.post(MESSAGES, json={**body, "tool_choice": {"type": "any"}, "stream": True})
    assert "9e999" in streamed.text


@pytest.mark.parametrize(("name", "arguments"), [("weather", {"city": ""}), ("book", {"page": 7})])
def test_a_named_function_is_called_with_arguments_of_its_schema(
    connect: Connect, name: str, arguments: dict[str, Any]
) -> None:
    choice = chat(connect, tool_choice={"type": "function", "function": {"name": name}})
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        name,
        arguments,
    )


def test_an_unsupported_schema_of_a_non_strict_tool_allows_any_object(
    connect: Connect,
) -> None:
    odd = {"properties": {"a": {"not": {}}}}
    choice = chat(connect, tools=[tool("odd", odd)], tool_choice="required")
    arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert isinstance(arguments, dict)


def test_reasoning_comes_before_a_required_call(connect: Connect) -> None:
    def thinks(request: Request) -> list[int]:
        return list(follower(request, begins="<think>Well.</think>"))

    client = connect(
        FakeEngine(thinks, max_len=2000), tool_parser="hermes", reasoning_parser="think"
    )
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required", "max_tokens": 400}
    message = client.post(CHAT, json=body).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Well."
    assert message["tool_calls"]


def test_unconstrained_tools_have_no_mask(connect: Connect) -> None:
    engine = FakeEngine(max_len=2000)
    client = connect(engine, tool_parser="hermes")
    for changes in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        body = {"messages": [USER], "tools": TOOLS, **changes}
        assert client.post(CHAT, json=body).status_code == 200
    assert [request.token_mask for request in engine.requests] == [None] * 3


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel_tool_calls": False},
        {"tools": [tool("book", PAGE, strict=True)]},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_constraints_on_optional_calls_set_a_mask(
    connect: Connect, changes: dict[str, Any]
) -> None:
    engine = FakeEngine("no", max_len=2000)
    body = {"messages": [USER], "tools": TOOLS, **changes}
    assert connect(engine, tool_parser="hermes").post(CHAT, json=body).status_code == 200
    assert engine.requests[0].token_mask is not None


@pytest.mark.parametrize("parser", ["pythonic", "llama3_json"])
def test_a_format_without_a_grammar_refuses_constraints(connect: Connect, parser: str) -> None:
    body = {"messages": [USER], "tools": TOOLS, "parallel_tool_calls": False}
    response = connect(FakeEngine(max_len=2000), tool_parser=parser).post(CHAT, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"


ANTHROPIC_TOOLS = [
    {"name": "weather", "input_schema": CITY},
    {"name": "book", "input_schema": PAGE, "strict": True},
]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, ("weather", "book")),
        ({"type": "any", "disable_parallel_tool_use": True}, ("weather", "book")),
        ({"type": "tool", "name": "book"}, ("book",)),
    ],
)
def test_anthropic_tool_choices_are_enforced(
    connect: Connect, choice: dict[str, Any], names: tuple[str, ...]
) -> None:
    body = {"messages": [USER], "tools": ANTHROPIC_TOOLS, "tool_choice": choice}
    response_body = send(connect, MESSAGES, body)
    assert response_body["stop_reason"] == "tool_use"
    (block,) = response_body["content"]
    assert block["type"] == "tool_use"
    assert block["name"] in names
    assert isinstance(block["input"], dict)


def test_a_strict_anthropic_tool_with_an_unsupported_schema_is_refused(
    connect: Connect,
) -> None:
    tools = [{"name": "odd", "strict": True, "input_schema": {"properties": {"a": {"not": {}}}}}]
    body = {"model": "tiny", "max_tokens": 9, "messages": [USER], "tools": tools}
    response = connect(FakeEngine(max_len=2000), tool_parser="hermes").post(MESSAGES, json=body)
    assert response.status_code == 400
    assert "'tools.0.input_schema' cannot be served at /properties/a" in response.text
