"""Invalid requests: one error shape with the field, found and accepted."""

import gzip
import json
from typing import Any

import pytest

from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine
from tests.support.server.responses import error_of

JSON = {"content-type": "application/json"}
PARAMS = "sampling_params"
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": -0.1}, ["at least 0", "-0.1"]),
        ({"temperature": "hot"}, ["a number", '"hot"']),
        ({"temperature": True}, ["a number", "true"]),
        ({"top_p": 0}, ["greater than 0", "found 0"]),
        ({"top_p": 1.5}, ["at most 1", "1.5"]),
        ({"top_k": -2}, ["-1 or 0 (off), or at least 1", "-2"]),
        ({"top_k": 1.5}, ["an integer", "1.5"]),
        ({"min_p": -0.5}, ["at least 0", "-0.5"]),
        ({"min_p": 2}, ["at most 1", "found 2"]),
        ({"seed": "x"}, ["an integer", '"x"']),
        ({"seed": 2**64}, ["less than", str(2**64)]),
        ({"stop": ""}, ["empty string"]),
        ({"stop": ["a", ""]}, ["empty string"]),
        ({"stop": 5}, ["a string or a list of strings", "found 5"]),
        ({"stop": ["a"] * 257}, ["at most 256 items"]),
        ({"stop": "a" * 20000}, ["16384 characters"]),
        ({"stop_token_ids": [-1]}, ["at least 0", "-1"]),
        ({"stop_regex": "(a"}, ["no regex", "unterminated", '"(a"']),
        ({"stop_regex": ["a", "b*"]}, ["at least one character", '"b*"']),
        ({"stop_regex": r"\bx"}, ["word boundary", "not supported"]),
        ({"stop_regex": ["a{300}", "b{300}"]}, ["at most 512", "found 600"]),
        ({"stop_regex": 5}, ["a string or a list of strings", "found 5"]),
        ({"ignore_eos": 1}, ["true or false", "found 1"]),
        ({"repetition_penalty": 0}, ["at least 0.01", "found 0"]),
        ({"repetition_penalty": 101}, ["at most 100", "found 101"]),
        ({"presence_penalty": 2.5}, ["at most 2", "2.5"]),
        ({"presence_penalty": "a"}, ["a number", '"a"']),
        ({"frequency_penalty": -3}, ["at least -2", "-3"]),
        ({"n": 0}, ["at least 1", "found 0"]),
        ({"n": 129}, ["at most 128", "found 129"]),
        ({"n": True}, ["an integer", "true"]),
        ({"logit_bias": [1]}, ["found [1]"]),
        ({"logit_bias": {"x": 1}}, ["a token id", "x"]),
        ({"logit_bias": {"-1": 1}}, ["a token id", "-1"]),
        ({"logit_bias": {"1": 101}}, ["-100 to 100", "101"]),
        ({"logit_bias": {"1": "a"}}, ["-100 to 100", '"a"']),
        ({"logit_bias": {"1": True}}, ["-100 to 100", "true"]),
        ({"logit_bias": {"1": 1, "01": 2}}, ["each token once"]),
        ({"logit_bias": {"258": 1}}, ["from 0 to 257", "258"]),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, ["at most 1024"]),
    ],
)
def test_an_invalid_sampling_field_is_named_on_every_route(
    connect: Connect, params: dict[str, Any], words: list[str]
) -> None:
    client = connect()
    (name,) = params
    for route, body, prefix in (
        ("/generate", {"text": "hi", PARAMS: params}, f"{PARAMS}."),
        ("/v1/completions", {"prompt": "hi", **params}, ""),
        ("/v1/chat/completions", {"messages": [USER], **params}, ""),
    ):
        error = error_of(client.post(route, json=body))
        assert error["param"].startswith(prefix + name)
        assert f"'{error['param']}'" in error["message"]
        assert all(word in error["message"] for word in words), error["message"]
        assert error["type"] == "invalid_request_error"
    assert client.post("/generate", json={"text": "hi"}).status_code == 200


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/generate", {"text": ""}, "text"),
        ("/generate", {"text": []}, "text"),
        ("/generate", {"text": ["a", ""]}, "text.1"),
        ("/generate", {"input_ids": []}, "input_ids"),
        ("/generate", {"input_ids": [[1], []]}, "input_ids.1"),
        ("/generate", {"messages": []}, "messages"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": ["a", ""]}, "prompt.1"),
        ("/v1/completions", {"prompt": [[]]}, "prompt.0"),
        ("/v1/completions", {"prompt": None}, "prompt"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
    ],
)
def test_an_empty_prompt_is_refused(
    connect: Connect, route: str, body: dict[str, Any], param: str
) -> None:
    error = error_of(connect().post(route, json=body))
    assert error["param"] == param
    assert "empty" in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"text": 5}, "text", ["a string", "found 5"]),
        ({"text": ["a", 5]}, "text.1", ["a string", "found 5"]),
        ({"input_ids": "x"}, "input_ids", ["a list of token ids or a list of such lists"]),
        ({"input_ids": [1, "b"]}, "input_ids.1", ["an integer", '"b"']),
        ({"input_ids": [1, 258]}, "input_ids", ["from 0 to 257", "258"]),
        ({"input_ids": [[1], [400]]}, "input_ids.1", ["from 0 to 257", "400"]),
        ({"input_ids": [-1]}, "input_ids.0", ["at least 0", "-1"]),
        ({"messages": [{"role": "oracle", "content": "a"}]}, "messages.0.role", ["'user'"]),
        ({"messages": [{"role": "user"}]}, "messages.0.content", ["missing"]),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", ["text parts"]),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    USER,
                    {"role": "system", "content": "b"},
                ]
            },
            "messages",
            ["system must come first"],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0.image_url",
            ["not supported"],
        ),
        ({"text": "a", "stream": "yes"}, "stream", ["true or false", '"yes"']),
        ({"text": "a", "rid": ""}, "rid", ["empty"]),
        ({"text": "a", "rid": "x" * 200}, "rid", ["at most 128"]),
        ({"text": "a", "rid": ["x"]}, "rid", ["one prompt"]),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid", ["one value or 2", "found 1"]),
        ({"text": ["a"], PARAMS: [{}, {}]}, PARAMS, ["one value or 1", "found 2"]),
        ({"text": ["a"] * 1025}, "text", ["at most 1024"]),
        ({"text": "a", PARAMS: {"seed": 1, "sampling_seed": 2}}, f"{PARAMS}.seed", ["send one"]),
        ({"text": "\ud800"}, "text", ["surrogate"]),
        ({"text": "a", "prompt": "b"}, "prompt", ["unknown field", "nearest"]),
        ({"text": "a", "temperature": 1}, "temperature", [f"'{PARAMS}.temperature'"]),
        ({"text": "a", PARAMS: {"max_tokens": 4}}, f"{PARAMS}.max_tokens", ["'max_new_tokens'"]),
        ({"text": "a", "return_logprob": 1}, "return_logprob", ["true or false", "found 1"]),
        (
            {"text": "a", "return_logprob": True, "top_logprobs_num": 21},
            "top_logprobs_num",
            ["at most 20", "found 21"],
        ),
        (
            {"text": "a", "return_logprob": True, "logprob_start_len": -2},
            "logprob_start_len",
            ["at least -1", "found -2"],
        ),
        ({"text": ["a"] * 100, PARAMS: {"n": 11}}, f"{PARAMS}.n", ["at most 1024", "found 1100"]),
        (
            {"text": "a", PARAMS: {"min_new_tokens": 5, "max_new_tokens": 4}},
            f"{PARAMS}.min_new_tokens",
            ["at most 4", "found 5"],
        ),
        (
            {"text": "a", "return_logprob": True, "token_ids_logprob": [258]},
            "token_ids_logprob",
            ["from 0 to 257", "258"],
        ),
        ({"text": "a", "token_ids_logprob": 5}, "token_ids_logprob", ["a list of token ids"]),
        ({"text": "a", "token_ids_logprob": [[1]]}, "token_ids_logprob", ["there is one prompt"]),
        (
            {"text": ["a", "b"], "token_ids_logprob": [[1]]},
            "token_ids_logprob",
            ["one value or 2", "found 1"],
        ),
        ({"text": "a", "token_ids_logprob": [1] * 257}, "token_ids_logprob", ["at most 256"]),
        ({"text": "a", PARAMS: {"regex": ""}}, f"{PARAMS}.regex", ["must not be empty"]),
    ],
)
def test_an_invalid_field_of_generate_is_named(
    connect: Connect, body: dict[str, Any], param: str, words: list[str]
) -> None:
    engine = FakeEngine()
    error = error_of(connect(engine).post("/generate", content=json.dumps(body), headers=JSON))
    assert error["param"] == param
    assert all(word in error["message"] for word in words), error["message"]
    assert engine.requests == []


@pytest.mark.parametrize("body", [{}, {"text": "a", "input_ids": [1]}, {"text": None}])
def test_generate_needs_exactly_one_prompt_field(connect: Connect, body: dict[str, Any]) -> None:
    message = error_of(connect().post("/generate", json=body))["message"]
    assert "exactly one of text, input_ids and messages" in message


@pytest.mark.parametrize(
    ("route", "field"),
    [
        ("/v1/completions", {"suffix": "x"}),
        ("/v1/completions", {"best_of": 2}),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("/v1/chat/completions", {"reasoning_effort": "low"}),
        ("both", {"length_penalty": 2}),
        ("both", {"use_beam_search": True}),
    ],
)
def test_unsupported_openai_fields_are_refused_by_name(
    connect: Connect, route: str, field: dict[str, Any]
) -> None:
    client = connect()
    for path, prompt in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [USER]}),
    ):
        if route in (path, "both"):
            error = error_of(client.post(path, json={**prompt, **field}))
            assert [error["param"]] == list(field)
            assert error["code"] == "unsupported_field"


def test_an_unknown_field_is_refused_with_the_nearest_name(connect: Connect) -> None:
    body = {"messages": [USER], "temprature": 1}
    error = error_of(connect().post("/v1/chat/completions", json=body))
    assert error["param"] == "temprature"
    assert error["code"] == "unknown_field"
    assert "nearest valid name is 'temperature'" in error["message"]


def test_the_native_route_suggests_its_name_for_other_servers_fields(connect: Connect) -> None:
    error = error_of(connect().post("/generate", json={"prompt": "a"}))
    assert error["param"] == "prompt"
    assert "nearest valid name is 'text'" in error["message"]


def test_stream_options_need_a_stream(connect: Connect) -> None:
    body = {"prompt": "a", "stream_options": {"include_usage": True}}
    error = error_of(connect().post("/v1/completions", json=body))
    assert error["param"] == "stream_options"


def test_several_errors_are_reported_together(connect: Connect) -> None:
    params = {"temperature": -1, "top_p": 3}
    message = error_of(connect().post("/generate", json={"text": 5, PARAMS: params}))["message"]
    assert all(name in message for name in ("'text'", "'sampling_params.top_p'"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_the_context_length_is_refused_with_both_lengths(
    connect: Connect, stream: bool
) -> None:
    client = connect(FakeEngine(max_len=20))
    error = error_of(client.post("/generate", json={"text": "a" * 19, "stream": stream}))
    assert "maximum context length is 20 tokens" in error["message"]
    assert "the prompt has 20" in error["message"]
    assert error["code"] == "context_length_exceeded"
    assert client.post("/generate", json={"text": "a" * 18}).status_code == 200


def test_max_tokens_beyond_the_context_are_refused_with_the_lengths(connect: Connect) -> None:
    client = connect(FakeEngine(max_len=20))
    body = {"prompt": "a" * 9, "max_tokens": 11}
    error = error_of(client.post("/v1/completions", json=body))
    assert error["param"] == "max_tokens"
    for words in ("maximum context length is 20", "has 10", "is 11", "21", "at most 10"):
        assert words in error["message"]
    assert client.post("/v1/completions", json={**body, "max_tokens": 10}).status_code == 200


def test_max_tokens_beyond_the_servers_cap_are_refused_with_the_cap(connect: Connect) -> None:
    client = connect(max_tokens_cap=16)
    body = {"messages": [USER], "max_completion_tokens": 17}
    error = error_of(client.post("/v1/chat/completions", json=body))
    assert error["param"] == "max_completion_tokens"
    assert "at most 16" in error["message"]
    assert "found 17" in error["message"]


@pytest.mark.parametrize("limit", [0, -1])
def test_max_tokens_below_one_are_refused(connect: Connect, limit: int) -> None:
    error = error_of(connect().post("/v1/completions", json={"prompt": "a", "max_tokens": limit}))
    assert "at least" in error["message"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{bad", ["not JSON", "character 1"]),
        (b"", ["missing"]),
        (b"5", ["JSON object", "found 5"]),
        (b"[]", ["JSON object", "found []"]),
        (b"null", ["JSON object", "found null"]),
        (b"\xff\xfe{", ["cannot be read as JSON", "not utf-16"]),
        (b"[" * 100_000, ["at most 200 levels"]),
        (b'{"text": "a", "sampling_params": {"temperature": NaN}}', ["finite"]),
        (b'{"text": "a", "sampling_params": {"temperature": 1e999}}', ["finite"]),
        (b'{"input_ids": [' + b"9" * 5000 + b"]}", ["cannot be read as JSON"]),
        (b'{"input_ids": [' + b"9" * 30 + b"]}", ["from 0 to 257"]),
    ],
)
def test_a_body_other_than_a_json_object_is_refused(
    connect: Connect, content: bytes, words: list[str]
) -> None:
    client = connect()
    for route in ("/generate", "/v1/completions"):
        message = error_of(client.post(route, content=content, headers=JSON))["message"]
        if route == "/generate":
            assert all(word in message for word in words), message
    assert client.post("/generate", json={"text": "hi"}).status_code == 200


def test_a_compressed_body_is_refused_with_its_encoding(connect: Connect) -> None:
    headers = {**JSON, "content-encoding": "gzip"}
    response = connect().post("/generate", content=gzip.compress(b"{}"), headers=headers)
    assert "'content-encoding: gzip'; send it uncompressed" in error_of(response)["message"]


def test_a_form_body_is_refused_with_the_expected_header(connect: Connect) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = connect().post("/generate", content=b'{"text": "a"}', headers=headers)
    assert "content-type: application/json" in error_of(response)["message"]


def test_ids_outside_the_vocabulary_cannot_be_detokenized(connect: Connect) -> None:
    client = connect()
    error = error_of(client.post("/detokenize", json={"tokens": [1, 2**40]}))
    assert error["param"] == "tokens"
    assert error_of(client.post("/detokenize", json={"tokens": [-1]}))["param"] == "tokens.0"


@pytest.mark.parametrize("body", [{}, {"text": "a", "messages": [USER]}, {"txt": "a"}])
def test_tokenize_needs_exactly_one_source(connect: Connect, body: dict[str, Any]) -> None:
    error_of(connect().post("/tokenize", json=body))


def test_an_unknown_route_is_not_found(connect: Connect) -> None:
    error = error_of(connect().get("/v2/nothing"), 404)
    assert "/v2/nothing" in error["message"]


def test_an_unsupported_method_is_refused_with_the_supported_ones(
    connect: Connect,
) -> None:
    response = connect().get("/generate")
    error = error_of(response, 405)
    assert "accepted: POST" in error["message"]
    assert response.headers["allow"] == "POST"


def test_an_unexpected_exception_is_a_500_without_details(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: object) -> list[int]:
        raise ZeroDivisionError("secret detail")

    response = connect(FakeEngine(broken)).post("/generate", json={"text": "hi"})
    error = error_of(response, 500)
    assert "secret" not in response.text
    assert error["type"] == "internal_error"
    assert "x-request-id" in response.headers
    assert "secret detail" in caplog.text
