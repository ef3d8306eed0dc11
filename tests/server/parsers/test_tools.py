"""Tools in chats, through the official client and a real web server."""

import json
from typing import Any

import openai
import pytest

from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine, app_with, served
from tests.support.server.responses import error_of, events_of

USER: Any = {"role": "user", "content": "hi"}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
BODY: dict[str, Any] = {"model": "tiny", "messages": [USER], "tools": [WEATHER]}


def chat(output: str, *, body: dict[str, Any] | None = None, **options: Any) -> Any:
    app = app_with(FakeEngine(output, max_len=1000), **{"tool_parser": "hermes", **options})
    with (
        served(app) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client,
    ):
        completion = client.chat.completions.create(**(body or BODY))
        return list(completion) if (body or BODY).get("stream") else completion


def test_a_call_and_the_text_before_it_are_separated() -> None:
    choice = chat(f"Let me see.\n{CALL}\n{CALL}").choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"] * 2
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Zürich"}
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert all(len(call.id) == 9 for call in choice.message.tool_calls)


def test_a_message_with_only_calls_has_no_content() -> None:
    assert chat(CALL).choices[0].message.content is None


@pytest.mark.parametrize("output", ["<tool_call>{</tool_call>", "It is sunny. ", CALL[:-30]])
def test_text_without_a_call_is_content(output: str) -> None:
    choice = chat(output).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", output)
    assert choice.message.tool_calls is None


def test_a_stream_has_the_same_calls() -> None:
    output = f"Let me see.\n{CALL}\n{CALL}"
    chunks = chat(output, body={**BODY, "stream": True})
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    arguments, names = {0: "", 1: ""}, {}
    for call in (call for delta in deltas for call in delta.tool_calls or []):
        arguments[call.index] += call.function.arguments or ""
        if call.id is not None:
            names[call.id] = call.function.name
    assert [json.loads(text) for text in arguments.values()] == [{"city": "Zürich"}] * 2
    assert list(names.values()) == ["weather"] * 2
    assert [c.choices[0].finish_reason for c in chunks][-1] == "tool_calls"


def test_a_message_parsed_by_the_client_can_be_sent_back() -> None:
    app = app_with(FakeEngine(f"Let me see.\n{CALL}", max_len=2000), tool_parser="hermes")
    with (
        served(app) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client,
    ):
        with client.chat.completions.stream(**BODY) as stream:
            message = stream.get_final_completion().choices[0].message
        assert message.tool_calls
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
        again = client.chat.completions.create(**{**BODY, "messages": [USER, message, result]})
    assert again.choices[0].finish_reason == "tool_calls"


def test_the_template_gets_the_tools_and_the_messages(connect: Connect) -> None:
    engine = FakeEngine(max_len=1000)
    client = connect(engine, tool_parser="hermes")
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
    }
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
    ]
    response = client.post("/v1/chat/completions", json={**BODY, "messages": turns})
    assert response.status_code == 200, response.text
    prompt = bytes(engine.requests[0].prompt_ids).decode()
    assert prompt.startswith(f"tools: {json.dumps([WEATHER])}\n")
    assert prompt.endswith("user: hi\nassistant: \ntool: sunny\nassistant: ")


def test_tool_choice_none_hides_tools_and_skips_parsing(connect: Connect) -> None:
    engine = FakeEngine(CALL, max_len=1000)
    body = {**BODY, "tool_choice": "none"}
    completion = (
        connect(engine, tool_parser="hermes").post("/v1/chat/completions", json=body).json()
    )
    assert completion["choices"][0]["message"]["content"] == CALL
    assert b"tools" not in bytes(engine.requests[0].prompt_ids)


def _strict(parameters: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "f", "strict": True, "parameters": parameters}
    return {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("change", "param", "word"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice", "no tools"),
        ({"tool_choice": "requird"}, "tool_choice", "'required'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "or a function"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "wether"}}},
            "tool_choice",
            "offered: weather",
        ),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
            "send one",
        ),
        (
            {"tools": [_strict({"properties": {"a": {"not": {}}}})]},
            "tools.0.function.parameters",
            "at /properties/a",
        ),
        ({"tools": [_strict({"type": "array"})]}, "tools.0.function.parameters", "object"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "twice"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools.0.function.name",
            "pattern",
        ),
        ({"messages": [{**USER, "tool_calls": []}]}, None, ""),
        (
            {"messages": [{**USER, "tool_call_id": "x"}]},
            "messages.0.tool_call_id",
            "role 'tool'",
        ),
        ({"messages": [{"role": "assistant"}]}, "messages.0.content", "missing"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}],
                    }
                ]
            },
            "messages.0.tool_calls.0.function.arguments",
            "JSON object",
        ),
        (
            {"chat_template_kwargs": {"opening": "\ud800"}},
            "chat_template_kwargs.opening",
            "surrogate",
        ),
    ],
)  # fmt: skip
def test_an_invalid_tool_field_is_named(
    connect: Connect, change: dict[str, Any], param: str | None, word: str
) -> None:
    client = connect(FakeEngine(max_len=1000), tool_parser="hermes")
    headers = {"content-type": "application/json"}
    response = client.post(
        "/v1/chat/completions", content=json.dumps({**BODY, **change}), headers=headers
    )
    if param is None:
        assert response.status_code == 200, response.text
        return
    error = error_of(response)
    assert error["param"] == param
    assert word in error["message"]


def test_tools_are_refused_without_a_tool_call_format(connect: Connect) -> None:
    error = error_of(connect().post("/v1/chat/completions", json=BODY))
    assert (error["param"], error["code"]) == ("tools", "unsupported_field")
    assert "the chat template has none" in error["message"]


def test_reasoning_is_separated_streamed_or_not() -> None:
    output = f"<think>\nWell.\n</think>\n\nLook: {CALL}"
    message = chat(output, reasoning_parser="think").choices[0].message
    assert message.reasoning_content == "Well."
    assert message.content == "Look:"
    assert message.tool_calls[0].function.name == "weather"
    chunks = chat(output, body={**BODY, "stream": True}, reasoning_parser="think")
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "Well."
    assert "".join(d.content or "" for d in deltas) == "Look:"


def test_without_a_reasoning_parser_reasoning_is_content(connect: Connect) -> None:
    body = {"messages": [USER], "stream": True}
    text = connect(FakeEngine("<think>a</think>b")).post("/v1/chat/completions", json=body).text
    message = [event["choices"][0]["delta"].get("content", "") for event in events_of(text)]
    assert "".join(message) == "<think>a</think>b"
