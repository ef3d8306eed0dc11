"""/v1/responses, through the official client and a real web server."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from engine import EngineBusy, Request, RequestFailed
from server.http.auth import KeyRing
from server.routes.responses import store as response_store
from tests.server.conftest import Connect
from tests.support.server.byte_text import BOS
from tests.support.server.fakes import FakeEngine, app_with, served, wait_until
from tests.support.server.responses import error_of

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
TOOL: Any = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": None,
}


def _prompt_text(request: Request) -> str:
    return bytes(i for i in request.prompt_ids if i != BOS).decode()


def _repeat(request: Request) -> list[int]:
    return [i for i in request.prompt_ids if i != BOS]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """The official client of an app that returns the prompt."""
    with served(app_with(FakeEngine(_repeat))) as address, _client(address) as connected:
        yield connected


def _client(address: str, key: str = "unused") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=10)


def test_a_response_has_a_message_and_usage(client: openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input="hi", instructions="be brief")
    assert (response.object, response.status, response.model) == ("response", "completed", "tiny")
    assert response.output_text == "system: be brief\nuser: hi\nassistant: "
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (37, 38)
    assert response.usage.input_tokens_details.cached_tokens == 1
    assert response.incomplete_details is None


def test_the_number_of_draft_tokens_reaches_the_engine(connect: Connect) -> None:
    engine = FakeEngine()
    body = {"input": "hi", "num_draft_tokens": 2, "n": 1}
    assert connect(engine).post("/v1/responses", json=body).status_code == 200
    assert engine.requests[0].params.num_draft_tokens == 2


def test_a_stream_has_the_clients_events_and_ends_with_the_same_response(
    client: openai.OpenAI,
) -> None:
    whole = client.responses.create(model="tiny", input="hi")
    events = list(client.responses.create(model="tiny", input="hi", stream=True))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 1
    assert list(dict.fromkeys(kinds)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed"
    assert text == last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage


def test_the_clients_stream_helper_returns_the_final_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tiny", input="hi") as stream:
        final = stream.get_final_response()
    assert final.output_text == "user: hi\nassistant: "


def test_a_response_at_its_limit_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input="hi", max_output_tokens=4)
    assert (response.status, response.output_text) == ("incomplete", "user")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_later_response_continues_an_earlier_one() -> None:
    engine = FakeEngine("yes")
    with served(app_with(engine)) as address, _client(address) as client:
        first = client.responses.create(model="tiny", input="one", instructions="brief")
        second = client.responses.create(model="tiny", input="two", previous_response_id=first.id)
        third = client.responses.create(
            model="tiny",
            input=[
                {"role": "user", "content": "one"},
                {"type": "item_reference", "id": second.output[0].id},  # type: ignore[typeddict-item]
                {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
            ],
        )
    assert second.previous_response_id == first.id
    assert third.status == "completed"
    assert [_prompt_text(request) for request in engine.requests] == [
        "system: brief\nuser: one\nassistant: ",
        "user: one\nassistant: yes\nuser: two\nassistant: ",
        "user: one\nassistant: yes\nuser: three\nassistant: ",
    ]


def test_a_kept_response_is_read_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(model="tiny", input="hi", metadata={"a": "b"})
    read = client.responses.retrieve(made.id)
    assert read == made
    assert read.metadata == {"a": "b"}
    (item,) = client.responses.input_items.list(made.id).data
    assert item.type == "message"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="tiny", input="x", previous_response_id=made.id)


def test_a_response_that_is_not_to_be_stored_cannot_be_read(client: openai.OpenAI) -> None:
    made = client.responses.create(model="tiny", input="hi", store=False)
    assert made.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_key_reads_its_own_responses_alone() -> None:
    app = app_with(FakeEngine("yes"), keys=KeyRing(callers=("k1", "k2")))
    with served(app) as address, _client(address, "k1") as one, _client(address, "k2") as two:
        made = one.responses.create(model="tiny", input="hi")
        assert one.responses.retrieve(made.id).id == made.id
        for call in (two.responses.retrieve, two.responses.delete, two.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.create(model="tiny", input="hi", previous_response_id=made.id)


def test_the_oldest_responses_are_dropped_beyond_the_limit() -> None:
    with (
        served(app_with(FakeEngine("yes"), responses_store=2)) as address,
        _client(address) as client,
    ):
        ids = [client.responses.create(model="tiny", input="hi").id for _ in range(3)]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[0])
        assert [client.responses.retrieve(i).id for i in ids[1:]] == ids[1:]


def test_kept_responses_are_bounded_in_bytes() -> None:
    store = response_store.ResponseStore(max_responses=100, max_bytes=2000)
    for i in range(20):
        response = {"id": f"r{i}", "output": [], "text": "x" * 300}
        store.put("", response_store.StoredResponse(response, [], ()))
    kept = [i for i in range(20) if _is_kept(store, f"r{i}")]
    assert kept == list(range(15, 20)) or kept == list(range(14, 20))


def _is_kept(store: response_store.ResponseStore, response_id: str) -> bool:
    try:
        return bool(store.get("", response_id, param="id"))
    except Exception:
        return False


def test_a_server_that_stores_nothing_says_so(connect: Connect) -> None:
    client = connect(FakeEngine("yes"), responses_store=0)
    made = client.post("/v1/responses", json={"input": "hi"}).json()
    assert (made["status"], made["store"]) == ("completed", False)
    for response in (
        client.get(f"/v1/responses/{made['id']}"),
        client.post("/v1/responses", json={"input": "a", "previous_response_id": made["id"]}),
        client.post("/v1/responses", json={"input": "a", "store": True}),
    ):
        error = error_of(response)
        assert error["code"] == "responses_store_off"
        assert "server.responses_store" in error["message"]


def test_a_call_becomes_an_item_and_its_result_goes_back() -> None:
    engine = FakeEngine(f"Let me see. {CALL}", tokens_per_step=5, max_len=2000)
    with (
        served(app_with(engine, tool_parser="hermes")) as address,
        _client(address) as client,
    ):
        whole = client.responses.create(model="tiny", input="1+2?", tools=[TOOL])
        with client.responses.stream(model="tiny", input="1+2?", tools=[TOOL]) as stream:
            streamed = stream.get_final_response()
        for response in (whole, streamed):
            message, call = response.output
            assert (message.type, call.type) == ("message", "function_call")
            assert (call.name, call.arguments) == ("add", '{"a": 1, "b": 2}')
        result: Any = {
            "type": "function_call_output",
            "call_id": whole.output[1].call_id,  # type: ignore[union-attr]
            "output": "3",
        }
        client.responses.create(
            model="tiny", input=[result], tools=[TOOL], previous_response_id=whole.id
        )
    prompt = _prompt_text(engine.requests[-1])
    assert "Let me see." in prompt
    assert "tool: 3" in prompt


def test_reasoning_becomes_an_item() -> None:
    engine = FakeEngine("<think>hm, two</think>2", tokens_per_step=4)
    with (
        served(app_with(engine, reasoning_parser="think")) as address,
        _client(address) as client,
    ):
        whole = client.responses.create(model="tiny", input="1+1?")
        events = list(client.responses.create(model="tiny", input="1+1?", stream=True))
        client.responses.create(model="tiny", input="and 2+2?", previous_response_id=whole.id)
    reasoning, message = whole.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "hm, two"
    assert message.type == "message"
    assert whole.output_text == "2"
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == len("hm, two")
    text = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    assert text == "hm, two"


def test_a_schema_constrains_the_text(connect: Connect) -> None:
    engine = FakeEngine('{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": schema}
    response = connect(engine).post(
        "/v1/responses", json={"input": "hi", "text": {"format": form, "verbosity": "medium"}}
    )
    assert response.status_code == 200, response.text
    assert engine.requests[0].token_mask is not None
    assert response.json()["text"]["format"]["schema"] == schema


def test_the_clients_parse_helper_returns_an_object() -> None:
    class Sum(BaseModel):
        total: int

    with served(app_with(FakeEngine('{"total": 3}'))) as address, _client(address) as client:
        parsed = client.responses.parse(model="tiny", input="1+2?", text_format=Sum)
    assert parsed.output_parsed == Sum(total=3)


def test_log_probabilities_come_with_the_text(client: openai.OpenAI) -> None:
    options: Any = {
        "model": "tiny",
        "input": "hi",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    whole = client.responses.create(**options)
    events = list(client.responses.create(stream=True, **options))
    part = whole.output[0].content[0]  # type: ignore[union-attr,index]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(entry.token for entry in part.logprobs) == f"{part.text}</s>"
    assert len(part.logprobs[0].top_logprobs) == 2
    streamed = [
        entry.token
        for event in events
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    assert "".join(streamed) == f"{part.text}</s>"


def test_a_running_response_is_cancelled() -> None:
    engine = FakeEngine(lambda request: b"x" * 150, steps_before_pause=2)
    with served(app_with(engine)) as address, _client(address) as client:
        stream = iter(client.responses.create(model="tiny", input="hi", stream=True))
        first = next(stream)
        assert first.type == "response.created"
        assert client.responses.retrieve(first.response.id).status == "in_progress"
        assert client.responses.cancel(first.response.id).status == "cancelled"
        last = list(stream)[-1]
        assert last.type == "response.incomplete"
        assert last.response.status == "cancelled"
        assert client.responses.retrieve(first.response.id).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match="no longer being generated"):
            client.responses.cancel(first.response.id)


def test_a_client_that_leaves_cancels_its_response() -> None:
    engine = FakeEngine(lambda request: b"x" * 150, steps_before_pause=2)
    with served(app_with(engine)) as address, _client(address) as client:
        stream = client.responses.create(model="tiny", input="hi", stream=True)
        first = next(iter(stream))
        assert first.type == "response.created"
        stream.close()
        wait_until(lambda: engine.num_cancelled == 1)
        wait_until(
            lambda: httpx.get(f"{address}/v1/responses/{first.response.id}").status_code == 404
        )


def test_a_failing_stream_ends_with_its_error() -> None:
    engine = FakeEngine("yes", steps_before_pause=1)
    with served(app_with(engine)) as address, _client(address) as client:
        stream = iter(client.responses.create(model="tiny", input="hi", stream=True))
        first = next(stream)
        engine.die(RequestFailed("out of luck"))
        events = list(stream)
        assert [event.type for event in events[-2:]] == ["error", "response.failed"]
        assert first.type == "response.created"
        failed = client.responses.retrieve(first.response.id)
    assert failed.status == "failed"
    assert failed.error is not None


def test_a_refused_stream_has_its_status(connect: Connect) -> None:
    client = connect(FakeEngine(refusal=EngineBusy("full")))
    error_of(client.post("/v1/responses", json={"input": "hi", "stream": True}), 429)


@pytest.mark.parametrize(
    ("fields", "param", "found"),
    [
        ({"input": []}, "input", "must not be empty"),
        ({"input": 5}, "input", "a string or a list of items"),
        ({"input": [{"type": "file"}]}, "input.0", "function_call_output"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "must have a message"),
        ({"background": True}, "background", "is not supported"),
        ({"n": 2}, "n", "is not supported"),
        ({"num_draft_tokens": -1}, "num_draft_tokens", "at least 0"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "must be 'function'"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools.0.type", "must be 'function'"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "is required"),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "x"}]},
            "input.0.arguments",
            "a JSON object",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    connect: Connect, fields: dict[str, Any], param: str, found: str
) -> None:
    error = error_of(connect().post("/v1/responses", json={"input": "hi", **fields}))
    assert error["param"] == param
    assert found in error["message"]


def test_only_allowed_tools_are_offered(connect: Connect) -> None:
    engine = FakeEngine("hi")
    tools = [TOOL, {**TOOL, "name": "sub"}]
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "sub"}],
    }
    client = connect(engine, tool_parser="hermes")
    body = {"input": "hi", "tools": tools, "tool_choice": allowed}
    assert client.post("/v1/responses", json=body).status_code == 200
    prompt = _prompt_text(engine.requests[0])
    assert '"sub"' in prompt
    assert '"add"' not in prompt
