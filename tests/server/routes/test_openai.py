"""The OpenAI routes, through the official client and a real web server."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine import EngineBusy, EngineDraining, RequestRejected
from server.http.auth import KeyRing
from tests.server.conftest import Connect
from tests.support.server.byte_text import BOS, EOS
from tests.support.server.fakes import FakeEngine, app_with, served
from tests.support.server.responses import error_of, events_of

USER = {"role": "user", "content": "hi"}
MESSAGES = {"messages": [USER]}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """The official client of an app that returns the prompt."""
    engine = FakeEngine(lambda request: [i for i in request.prompt_ids if i != BOS])
    with served(app_with(engine)) as address, _client(address) as connected:
        yield connected


def _client(address: str, key: str = "unused") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=10)


def test_a_completion_has_text_a_finish_reason_and_usage(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="tiny", prompt="hello", max_tokens=4)
    assert completion.object == "text_completion"
    assert completion.id.startswith("cmpl-")
    assert completion.choices[0].text == "hell"
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 6
    assert completion.usage.completion_tokens == 4
    assert completion.usage.total_tokens == 10


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ],
)
def test_each_kind_of_prompt_is_completed(
    client: openai.OpenAI, prompt: Any, texts: list[str]
) -> None:
    choices = client.completions.create(model="tiny", prompt=prompt).choices
    assert [choice.text for choice in choices] == texts
    assert [choice.index for choice in choices] == list(range(len(texts)))


def test_a_streamed_completion_joins_to_the_whole_one(client: openai.OpenAI) -> None:
    prompt = "日本語 👩‍👩‍👧 e\u0301"
    options: Any = {"model": "tiny", "prompt": prompt, "max_tokens": 60}
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(stream=True, **options))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text == prompt
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_several_prompts_stream_concurrently(client: openai.OpenAI) -> None:
    texts = {0: "", 1: ""}
    for chunk in client.completions.create(model="tiny", prompt=["abcdefg", "xyz"], stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "abcdefg", 1: "xyz"}


def test_a_stop_is_excluded_from_text_and_named(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="tiny", prompt="one, two", stop=["!", ", "])
    assert completion.choices[0].text == "one"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.choices[0].model_extra == {"stop_reason": ", ", "matched_stop": ", "}


@pytest.mark.parametrize(
    ("asked", "stop_reason"),
    [
        ({}, None),
        ({"stop_token_ids": [EOS]}, EOS),
        ({"stop": ["w"]}, "w"),
        ({"max_tokens": 1}, None),
    ],
    ids=["own end", "its id", "string", "length"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_reason_is_a_requested_stop_or_null(
    connect: Connect, asked: dict[str, Any], stop_reason: str | int | None, stream: bool
) -> None:
    body = {"prompt": "hi", "stream": stream, **asked}
    response = connect().post("/v1/completions", json=body)
    last = events_of(response.text)[-1] if stream else response.json()
    assert last["choices"][0]["stop_reason"] == stop_reason


def test_a_chat_returns_an_assistant_message(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model="tiny", messages=[USER], max_completion_tokens=6
    )
    assert completion.object == "chat.completion"
    assert completion.choices[0].message.role == "assistant"
    assert completion.choices[0].message.content == "user: "
    assert completion.choices[0].finish_reason == "length"


def test_a_returned_message_can_be_sent_back(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(model="tiny", messages=[USER]).choices[0].message
    again = client.chat.completions.create(
        model="tiny", messages=[USER, message.model_dump(), USER]
    )
    assert (
        again.choices[0].message.content
        == "user: hi\nassistant: user: hi\nassistant: \nuser: hi\nassistant: "
    )


def test_a_streamed_chat_begins_with_the_role_and_may_end_with_usage(
    client: openai.OpenAI,
) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=[USER], stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    roles = [chunk.choices[0].delta.role for chunk in chunks]
    assert roles == ["assistant"] + [None] * (len(chunks) - 1)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "user: hi\nassistant: "
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 20 + 21


def test_a_stream_has_no_usage_by_default(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=[USER], stream=True))
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)


def test_the_model_is_listed_and_can_be_looked_up(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="accepted: 'tiny'"):
        client.models.retrieve("some/other")


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=[USER])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_refused_request_is_a_bad_request_streamed_or_not(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 200") as caught:
            client.completions.create(model="tiny", prompt="x" * 300, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestRejected("cannot", param="prompt"), openai.BadRequestError),
        (EngineBusy("the queue of 4 is full"), openai.RateLimitError),
        (EngineDraining("shutting down"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_engine_errors_are_the_clients_exceptions(
    error: Any, expected: type[openai.APIStatusError], stream: bool
) -> None:
    with served(app_with(FakeEngine(refusal=error))) as address, _client(address) as client:
        with pytest.raises(expected, match=str(error)) as caught:
            client.completions.create(model="tiny", prompt="hi", stream=stream)
        assert ("retry-after" in caught.value.response.headers) == (
            expected is not openai.BadRequestError
        )


def test_a_wrong_key_is_an_authentication_error() -> None:
    with served(app_with(FakeEngine(), keys=KeyRing(callers=("right",)))) as address:
        with _client(address, "wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with _client(address, "right") as client:
            assert client.completions.create(model="tiny", prompt="hi").choices[0].text


def test_a_dead_engine_ends_the_stream_with_an_error() -> None:
    engine = FakeEngine(steps_before_pause=1)
    with served(app_with(engine)) as address, _client(address) as client:
        stream = client.completions.create(model="tiny", prompt="hi", stream=True)
        assert next(stream).choices[0].text == "hel"
        engine.die()
        with pytest.raises(openai.APIError, match="step loop stopped"):
            list(stream)


def test_neutral_values_of_unsupported_fields_are_accepted(connect: Connect) -> None:
    client = connect()
    neutral = {
        "n": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "seed": None,
        "stop": None,
        "stream": None,
        "stream_options": None,
    }
    chat = {
        "messages": [USER],
        "tools": [],
        "tool_choice": "auto",
        "logprobs": False,
        "response_format": {"type": "text"},
        **neutral,
    }
    assert client.post("/v1/chat/completions", json=chat).status_code == 200
    completion = {"prompt": "a", "echo": False, "logprobs": None, "best_of": 1, **neutral}
    assert client.post("/v1/completions", json=completion).status_code == 200


def test_extra_sampling_fields_are_top_level(connect: Connect) -> None:
    engine = FakeEngine()
    body = {
        "prompt": "hi",
        "top_k": 5,
        "min_p": 0.2,
        "stop_token_ids": [104],
        "ignore_eos": True,
        "seed": 3,
    }
    completion = connect(engine).post("/v1/completions", json=body).json()
    params = engine.requests[0].params
    assert (params.top_k, params.min_p, params.seed) == (5, 0.2, 3)
    assert (params.stop_token_ids, params.ignore_eos) == ({104}, True)
    assert completion["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": 104,
        "matched_stop": 104,
    }


def test_tokens_without_text_make_no_chunk(connect: Connect) -> None:
    engine = FakeEngine("👍👍", tokens_per_step=1)
    stream = connect(engine).post("/v1/completions", json={"prompt": "hi", "stream": True}).text
    texts = [event["choices"][0]["text"] for event in events_of(stream)]
    assert texts == ["👍", "👍", ""]


def test_both_names_of_the_limit_may_agree_but_not_differ(connect: Connect) -> None:
    client = connect()
    for other, status in ((5, 200), (6, 400)):
        body = {"messages": [USER], "max_tokens": 5, "max_completion_tokens": other}
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == status
        if status == 400:
            assert "'max_completion_tokens' is 6" in response.json()["error"]["message"]


def test_continuous_usage_stats_are_in_every_chunk(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.completions.create(
            model="tiny", prompt=["abcdefg", "xy"], stream=True, stream_options=options
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts)
    assert counts[-2:] == [11, 11]  # the last chunk of text, and the one without choices
    assert all(chunk.usage and chunk.usage.prompt_tokens == 11 for chunk in chunks)


def test_token_by_token_sends_one_chunk_per_token(connect: Connect) -> None:
    engine = FakeEngine("abc👍", tokens_per_step=5)
    options = {"token_by_token": True}
    for route, prompt in (("completions", {"prompt": "a"}), ("chat/completions", MESSAGES)):
        body = {**prompt, "stream": True, "stream_options": options}
        events = events_of(connect(engine).post(f"/v1/{route}", json=body).text)
        choices = [event["choices"][0] for event in events if "role" not in str(event)]
        texts = [c.get("text", c.get("delta", {}).get("content", "")) for c in choices]
        assert texts == ["a", "b", "c", "", "", "", "👍", ""]  # four bytes, and the end of text
        assert [c["finish_reason"] for c in choices] == [None] * 7 + ["stop"]
    body = {"text": "a", "stream": True, "incremental_stream_output": True}
    native = connect(engine).post("/generate", json={**body, "token_by_token": True}).text
    assert [len(event["output_ids"]) for event in events_of(native)] == [1] * 8


def test_return_speculation_adds_statistics_to_each_choice(connect: Connect) -> None:
    client = connect()
    expected = {
        "accept_length": pytest.approx(1 + 4 / 3),
        "accept_rate": pytest.approx(4 / 12),
        "accept_histogram": [1, 0, 2],
        "num_rounds": 3,
        "num_draft_tokens": 12,
        "num_accepted_tokens": 4,
    }
    body = {"prompt": ["a", "b"], "return_speculation": True}
    whole = client.post("/v1/completions", json=body).json()["choices"]
    assert [choice["speculation"] for choice in whole] == [expected] * 2
    chat = client.post("/v1/chat/completions", json={**MESSAGES, "return_speculation": True})
    assert chat.json()["choices"][0]["speculation"] == expected
    stream = client.post("/v1/completions", json={**body, "stream": True}).text
    finished = [c for event in events_of(stream) for c in event["choices"] if "speculation" in c]
    assert [(c["speculation"], c["finish_reason"]) for c in finished] == [(expected, "stop")] * 2
    assert "speculation" not in client.post("/v1/completions", json={"prompt": "a"}).text


def test_chat_template_kwargs_reach_the_template(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine)
    body = {**MESSAGES, "chat_template_kwargs": {"opening": "Hear: "}}
    for route in ("/v1/chat/completions", "/generate", "/tokenize"):
        response = client.post(route, json=body)
        assert response.status_code == 200, response.text
    assert bytes(response.json()["tokens"]).startswith(b"Hear: user: hi")
    assert all(bytes(r.prompt_ids).startswith(b"Hear: ") for r in engine.requests)


def test_reserved_or_failing_chat_template_kwargs_are_refused(
    connect: Connect,
) -> None:
    client = connect()
    for kwargs, param in (
        ({"tokenize": False}, "chat_template_kwargs"),
        ({"conversations": []}, "chat_template_kwargs"),
        ({"opening": 5}, "messages"),  # the template adds it to a text
    ):
        response = client.post(
            "/v1/chat/completions", json={**MESSAGES, "chat_template_kwargs": kwargs}
        )
        assert error_of(response)["param"] == param
    error = error_of(client.post("/generate", json={"text": "a", "chat_template_kwargs": {"a": 1}}))
    assert "with 'messages'" in error["message"]


def test_a_completion_without_a_limit_has_sixteen_tokens(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine)
    client.post("/v1/completions", json={"prompt": "hi"})
    client.post("/v1/chat/completions", json={"messages": [USER], "stop_token_ids": [10**6]})
    limits = [request.params.max_new_tokens for request in engine.requests]
    assert limits == [16, 200 - len(engine.requests[1].prompt_ids)]
    assert engine.requests[1].params.stop_token_ids == frozenset()


def test_numbers_without_a_fraction_are_integers(connect: Connect) -> None:
    engine = FakeEngine()
    body = {"prompt": "hi", "max_tokens": 4.0, "stop_token_ids": [5.0]}
    assert connect(engine).post("/v1/completions", json=body).status_code == 200
    assert engine.requests[0].params.max_new_tokens == 4
    error_of(connect().post("/v1/completions", json={"prompt": "hi", "max_tokens": 4.5}))
