"""Anthropic's routes, through the official client and a real web server."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from engine import EngineBusy, EngineDead, EngineDraining
from server.http.auth import KeyRing
from server.http.timeouts import TimeLimits
from tests.server.conftest import Connect
from tests.support.server.byte_text import BOS
from tests.support.server.fakes import FakeEngine, app_with, served

USER: Any = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 50}


@pytest.fixture(scope="module")
def client() -> Iterator[anthropic.Anthropic]:
    """The official client of an app that returns the prompt."""
    engine = FakeEngine(lambda request: [i for i in request.prompt_ids if i != BOS])
    with served(app_with(engine)) as address, _client(address) as connected:
        yield connected


def _client(address: str, key: str = "unused") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=address, api_key=key, max_retries=0, timeout=10)


def _error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert (set(body), body["type"]) == ({"type", "error"}, "error")
    assert set(body["error"]) == {"type", "message"}
    error: dict[str, Any] = body["error"]
    return error


def test_a_message_has_blocks_a_stop_reason_and_usage(
    client: anthropic.Anthropic,
) -> None:
    message = client.messages.create(**BODY, system="be brief")
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    (block,) = message.content
    assert block.type == "text"
    assert block.text == "system: be brief\nuser: hi\nassistant: "
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == 37
    assert message.usage.output_tokens == 38


def test_the_client_gets_the_request_id(client: anthropic.Anthropic) -> None:
    named = {"x-request-id": "r-1"}
    assert client.messages.create(**BODY, extra_headers=named)._request_id == "r-1"
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**BODY, "max_tokens": 0}, extra_headers=named)
    assert caught.value.request_id == "r-1"


def test_a_message_ends_at_its_limit_or_at_a_named_stop(
    client: anthropic.Anthropic,
) -> None:
    cut = client.messages.create(**{**BODY, "max_tokens": 4})
    assert (cut.content[0].text, cut.stop_reason) == ("user", "max_tokens")  # type: ignore[union-attr]
    stopped = client.messages.create(**BODY, stop_sequences=["\n", "xyz"])
    assert stopped.content[0].text == "user: hi"  # type: ignore[union-attr]
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "\n")
    empty = client.messages.create(**BODY, stop_sequences=["us"])
    assert empty.content == []


def test_blocks_of_text_are_joined_and_roles_alternate(client: anthropic.Anthropic) -> None:
    parts: Any = [
        {"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "two"},
    ]
    message = client.messages.create(
        model="tiny",
        max_tokens=80,
        system=parts,
        messages=[USER, {"role": "assistant", "content": "yes"}, {**USER, "content": parts}],
    )
    assert message.content[0].text == (  # type: ignore[union-attr]
        "system: one\ntwo\nuser: hi\nassistant: yes\nuser: one\ntwo\nassistant: "
    )


@pytest.mark.parametrize("system", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_system_is_ignored(client: anthropic.Anthropic, system: Any) -> None:
    """A template's default system message still applies."""
    message = client.messages.create(**BODY, system=system)
    assert message.content[0].text == "user: hi\nassistant: "  # type: ignore[union-attr]


def test_the_output_continues_a_final_assistant_message(client: anthropic.Anthropic) -> None:
    begun: Any = [USER, {"role": "assistant", "content": "It is"}]
    message = client.messages.create(**{**BODY, "messages": begun})
    assert message.content[0].text == "user: hi\nassistant: It is"  # type: ignore[union-attr]


def test_a_stream_joins_to_the_whole_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**BODY, stop_sequences=["assist"])
    with client.messages.stream(**BODY, stop_sequences=["assist"]) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert streamed.content[0].text == text  # type: ignore[union-attr]
    for name in ("stop_reason", "stop_sequence", "usage", "role", "model"):
        assert getattr(streamed, name) == getattr(whole, name), name


def test_stream_events_have_anthropics_order(connect: Connect) -> None:
    text = connect(FakeEngine("hello")).post("/v1/messages", json={**BODY, "stream": True}).text
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event")]
    assert names == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "[DONE]" not in text


def test_a_stream_without_text_has_no_block(connect: Connect) -> None:
    text = connect(FakeEngine("")).post("/v1/messages", json={**BODY, "stream": True}).text
    assert "content_block" not in text
    assert '"stop_reason":"end_turn"' in text


def test_count_tokens_returns_the_prompt_length_of_the_message(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model="tiny", messages=[USER], system="be brief")
    assert count.input_tokens == 37


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_an_invalid_field_has_anthropics_error_shape(connect: Connect, path: str) -> None:
    client = connect()
    image = {"type": "image", "source": {}}
    for change, words in (
        ({"messages": []}, ["'messages'", "empty"]),
        ({"messages": [{"role": "tool", "content": "x"}]}, ["'user', 'assistant' or 'system'"]),
        ({"messages": [{**USER, "content": [image]}]}, ["messages.0.content.0"]),
        ({"messages": [{**USER, "content": 5}]}, ["a string or a list of text blocks"]),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, ["messages.1.content"]),
        ({"model": "claude"}, ["not served"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, ["model.reasoning_parser"]),
        ({"output_config": {"effort": "low"}}, ["'output_config.effort'", "reasoning_parser"]),
        ({"colour": 1}, ["'colour' is an unknown field"]),
    ):
        body = {"model": "tiny", "messages": [USER], **change}
        if not path.endswith("count_tokens"):
            body["max_tokens"] = 5
        error = _error(client.post(path, json=body), 404 if "model" in change else 400)
        assert all(word in error["message"] for word in words), error["message"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_tokens": 0}, "at least 1"),
        ({"stop_sequences": [""]}, "empty string"),
        ({"max_tokens": 500}, "maximum context length"),
        ({"temperature": -1}, "at least 0"),
    ],
)
def test_sampling_fields_are_checked(connect: Connect, change: dict[str, Any], word: str) -> None:
    assert word in _error(connect().post("/v1/messages", json={**BODY, **change}), 400)["message"]


def test_max_tokens_is_required(connect: Connect) -> None:
    body = {"model": "tiny", "messages": [USER]}
    assert (
        "'max_tokens' is missing"
        in _error(connect().post("/v1/messages", json=body), 400)["message"]
    )


@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (EngineBusy("full"), anthropic.RateLimitError, "rate_limit_error"),
        (EngineDraining("shutting down"), anthropic.InternalServerError, "overloaded_error"),
        (EngineDead("gone"), anthropic.InternalServerError, "overloaded_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_engine_errors_are_the_clients_exceptions(
    error: Any, expected: type[anthropic.APIStatusError], kind: str, stream: bool
) -> None:
    with served(app_with(FakeEngine(refusal=error))) as address, _client(address) as client:
        with pytest.raises(expected, match=str(error)) as caught:
            client.messages.create(**BODY, stream=stream)
        assert caught.value.body["error"]["type"] == kind  # type: ignore[index]


def test_the_clients_key_header_is_accepted() -> None:
    app = app_with(FakeEngine("hello"), keys=KeyRing(callers=("right",)))
    with served(app) as address:
        with _client(address, "wrong") as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**BODY)
        with _client(address, "right") as client:
            assert client.messages.create(**BODY).content[0].text == "hello"  # type: ignore[union-attr]


def test_a_failed_stream_ends_with_an_error_event() -> None:
    app = app_with(FakeEngine(steps_before_pause=1), limits=TimeLimits(request_s=0.05))
    with (
        served(app) as address,
        _client(address) as client,
        pytest.raises(anthropic.APIStatusError, match="not complete"),
        client.messages.stream(**BODY) as stream,
    ):
        list(stream)


def test_too_large_and_non_json_bodies_have_anthropics_error_shape(connect: Connect) -> None:
    client = connect(max_body_bytes=100)
    assert _error(client.post("/v1/messages", content=b"x" * 200), 413)["type"] == (
        "request_too_large"
    )
    headers = {"content-type": "application/json"}
    assert _error(client.post("/v1/messages", content=b"{", headers=headers), 400)
    assert _error(client.get("/v1/messages"), 405)


WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLS = """<think>Hm.</think>Let me see.
<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>"""


def test_reasoning_and_calls_are_separate_blocks_streamed_or_not() -> None:
    engine = FakeEngine(CALLS, max_len=1000)
    app = app_with(engine, tool_parser="hermes", reasoning_parser="think")
    cached = {"cache_control": {"type": "ephemeral"}}
    body = {**BODY, "max_tokens": 200, "tools": [{**WEATHER, **cached}], **cached}
    with served(app) as address, _client(address) as client:
        whole = client.messages.create(**body)
        with client.messages.stream(**body) as stream:
            streamed = stream.get_final_message()
        dumped = [block.model_dump() for block in streamed.content]
        for message, content in ((whole, whole.content), (streamed, dumped)):
            call_id = message.content[-1].id
            result = {"type": "tool_result", "tool_use_id": call_id, "content": "rain"}
            turns = [USER, {"role": "assistant", "content": content}, {**USER, "content": [result]}]
            again = client.messages.create(**{**body, "messages": turns})
            assert again.stop_reason == "tool_use"
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        thinking, text, call = message.content
        assert thinking.type == "thinking"
        assert thinking.thinking == "Hm."
        assert text.type == "text"
        assert text.text == "Let me see."
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("weather", {"city": "Bern"})
    assert b'"name": "weather", "parameters"' in bytes(engine.requests[0].prompt_ids)


def test_earlier_calls_and_their_results_are_part_of_the_chat(connect: Connect) -> None:
    engine = FakeEngine(max_len=1000)
    turns = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "b"},
                {"type": "text", "text": "Well?"},
            ],
        },
    ]
    body = {**BODY, "messages": turns, "tools": [WEATHER], "tool_choice": {"type": "none"}}
    assert connect(engine).post("/v1/messages", json=body).status_code == 200
    prompt = bytes(engine.requests[0].prompt_ids).decode()
    assert prompt == (
        "user: hi\nassistant: Let me see.\ntool: sunny\ntool: \nuser: Well?\nassistant: "
    )


def test_an_opening_reasoning_tag_in_the_prompt_is_detected(connect: Connect) -> None:
    client = connect(FakeEngine("Well.</think>Yes."), reasoning_parser="think")
    turns = [USER, {"role": "assistant", "content": "<think>"}]
    opened = client.post("/v1/messages", json={**BODY, "messages": turns}).json()["content"]
    assert opened == [
        {"type": "thinking", "thinking": "Well.", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
    closed = client.post("/v1/messages", json=BODY).json()["content"]
    assert closed == [{"type": "text", "text": "Well.</think>Yes."}]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tools": [WEATHER]}, "'tools' is not supported here"),
        ({"tool_choice": {"type": "any"}}, "'tool_choice' requires a call of any; offered: no"),
        ({"tool_choice": {"type": "tool"}}, "'tool_choice.name' belongs to"),
        (
            {"tool_choice": {"type": "tool", "name": "x"}, "tools": [WEATHER]},
            "'tool_choice' requires a call of x; offered: ",
        ),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools.0.name"),
        (
            {"messages": [{**USER, "content": [{"type": "thinking", "thinking": "a"}]}]},
            "'messages.0.content.0' is a thinking block, which only the assistant has",
        ),
    ],
)
def test_invalid_tool_fields_are_refused(
    connect: Connect, change: dict[str, Any], word: str
) -> None:
    assert word in _error(connect().post("/v1/messages", json={**BODY, **change}), 400)["message"]


def test_the_clients_parse_helper_returns_an_object() -> None:
    class Sum(BaseModel):
        total: int

    engine = FakeEngine('{"total": 3}')
    with served(app_with(engine)) as address, _client(address) as client:
        message = client.messages.parse(**BODY, output_format=Sum)
        assert message.parsed_output == Sum(total=3)
    assert engine.requests[0].token_mask is not None


def test_reasoning_fields_reach_the_template_with_a_reasoning_parser(connect: Connect) -> None:
    client = connect(FakeEngine(), reasoning_parser="think")
    for fields in (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "low"}},
    ):
        response = client.post("/v1/messages", json={**BODY, **fields})
        assert response.status_code == 200, response.text


def test_values_that_change_nothing_are_accepted(connect: Connect) -> None:
    fields = {
        "context_management": {"edits": []},
        "speed": "standard",
        "thinking": {"type": "disabled"},
        "max_tokens": 5.0,
    }
    assert connect().post("/v1/messages", json={**BODY, **fields}).status_code == 200


def test_a_system_message_may_stand_in_the_list(connect: Connect) -> None:
    engine = FakeEngine()
    messages = [{"role": "system", "content": "be brief"}, USER]
    response = connect(engine).post("/v1/messages", json={**BODY, "messages": messages})
    assert response.status_code == 200, response.text
    assert bytes(i for i in engine.requests[0].prompt_ids if i != BOS).startswith(b"system: be")


def test_a_thread_is_refused_in_the_form_that_the_tool_runner_falls_back_on(
    connect: Connect,
) -> None:
    response = connect().post("/v1/messages", json={**BODY, "thread": {"type": "new"}})
    assert response.status_code == 400
    details = response.json()["error"]["details"]
    assert details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_models_have_the_clients_shape(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.type) == ("tiny", "model")
    assert client.models.retrieve("tiny").display_name == "tiny"


def test_batches_are_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(
        anthropic.NotFoundError,
        match="batches are not served; send each request to POST /v1/messages",
    ):
        client.messages.batches.list()
