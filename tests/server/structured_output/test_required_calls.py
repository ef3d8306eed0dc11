"""Promised calls of tools: an engine that follows its mask can say nothing else."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine import Request
from tests.server.conftest import Connect
from tests.support.server.byte_text import EOS, NUM_IDS
from tests.support.server.fakes import FakeEngine

USER = {"role": "user", "content": "hi"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PAGE = {"type": "object", "properties": {"page": {"enum": [7]}}, "required": ["page"]}
PAGE["additionalProperties"] = False
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def tool(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [tool("weather", CITY), tool("book", PAGE)]


def follower(request: Request, *, begins: str = "") -> Iterator[int]:
    """Says `begins`, then what ends an answer soonest: the end of text, a quote, a brace, ..."""
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


def ask(connect: Connect, route: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    client = connect(FakeEngine(follow, max_len=2000), **{"tool_parser": "hermes", **options})
    response = client.post(route, json={"model": "tiny", "max_tokens": 400, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def chat(connect: Connect, **body: Any) -> dict[str, Any]:
    answer = ask(connect, CHAT, {"messages": [USER], "tools": TOOLS, **body})
    choice: dict[str, Any] = answer["choices"][0]
    return choice


@pytest.mark.parametrize("parser", ["hermes", "mistral", "llama3_json"])
def test_a_required_call_is_there_in_every_format(connect: Connect, parser: str) -> None:
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}
    choice = ask(connect, CHAT, body, tool_parser=parser)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in ("weather", "book")
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


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


def test_a_schema_that_cannot_be_served_lets_any_object_pass_if_it_is_not_strict(
    connect: Connect,
) -> None:
    odd = {"properties": {"a": {"not": {}}}}
    choice = chat(connect, tools=[tool("odd", odd)], tool_choice="required")
    arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert isinstance(arguments, dict)


def test_thoughts_come_before_a_required_call(connect: Connect) -> None:
    def thinks(request: Request) -> list[int]:
        return list(follower(request, begins="<think>Well.</think>"))

    client = connect(
        FakeEngine(thinks, max_len=2000), tool_parser="hermes", reasoning_parser="think"
    )
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required", "max_tokens": 400}
    message = client.post(CHAT, json=body).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Well."
    assert message["tool_calls"]


def test_without_a_promise_there_is_no_mask(connect: Connect) -> None:
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
def test_promises_about_calls_that_may_come_make_a_mask_too(
    connect: Connect, changes: dict[str, Any]
) -> None:
    engine = FakeEngine("no", max_len=2000)
    body = {"messages": [USER], "tools": TOOLS, **changes}
    assert connect(engine, tool_parser="hermes").post(CHAT, json=body).status_code == 200
    assert engine.requests[0].token_mask is not None


@pytest.mark.parametrize("parser", ["pythonic", "llama3_json"])
def test_a_format_without_a_grammar_refuses_to_promise(connect: Connect, parser: str) -> None:
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
def test_anthropics_choices_are_kept_too(
    connect: Connect, choice: dict[str, Any], names: tuple[str, ...]
) -> None:
    body = {"messages": [USER], "tools": ANTHROPIC_TOOLS, "tool_choice": choice}
    answer = ask(connect, MESSAGES, body)
    assert answer["stop_reason"] == "tool_use"
    (block,) = answer["content"]
    assert block["type"] == "tool_use"
    assert block["name"] in names
    assert isinstance(block["input"], dict)


def test_anthropics_strict_tool_with_a_schema_that_cannot_be_served_is_refused(
    connect: Connect,
) -> None:
    tools = [{"name": "odd", "strict": True, "input_schema": {"properties": {"a": {"not": {}}}}}]
    body = {"model": "tiny", "max_tokens": 9, "messages": [USER], "tools": tools}
    response = connect(FakeEngine(max_len=2000), tool_parser="hermes").post(MESSAGES, json=body)
    assert response.status_code == 400
    assert "'tools.0.input_schema' cannot be served at /properties/a" in response.text
