"""Routes and fields that clients of SGLang and vLLM use."""

from typing import Any

import pytest

from engine import EngineSnapshot
from tests.server.conftest import Connect
from tests.support.server.clients import USER
from tests.support.server.fakes import FakeEngine
from tests.support.server.responses import error_of, events_of

BUSY = EngineSnapshot(
    num_rounds=10,
    num_draft_tokens=40,
    num_accepted_tokens=25,
    accepted_per_position=(10, 8, 7),
    num_running=2,
    num_waiting=1,
    num_pages=8,
    num_used_pages=4,
)


BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": ["hi", "ho"]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"model": "tiny", "messages": [USER], "max_tokens": 5},
}


def _busy() -> FakeEngine:
    engine = FakeEngine()
    engine.state = BUSY
    return engine


def test_server_info_has_the_accept_length_where_benchmarks_look(connect: Connect) -> None:
    client = connect(_busy())
    for route in ("/server_info", "/get_server_info"):
        (state,) = client.get(route).json()["internal_states"]
        assert state["avg_spec_accept_length"] == 3.5


def test_load_is_reported_under_both_names(connect: Connect) -> None:
    client = connect(_busy())
    assert client.get("/load").json() == {"server_load": 3}
    (load,) = client.get("/v1/loads").json()["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (2, 1)
    assert load["token_usage"] == 0.5


@pytest.mark.parametrize("route", ["/get_model_info", "/model_info"])
def test_the_model_is_described(connect: Connect, route: str) -> None:
    info = connect().get(route).json()
    assert (info["model_path"], info["is_generation"]) == ("tiny", True)


def test_health_generate_runs_one_token(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine)
    assert client.get("/health_generate").status_code == 200
    assert [r.params.max_new_tokens for r in engine.requests] == [1]
    engine.die()
    error_of(client.get("/health_generate"), 503)
    error_of(client.get("/ping"), 503)


def test_version_and_ping_answer(connect: Connect) -> None:
    client = connect()
    assert set(client.get("/version").json()) == {"version"}
    assert client.get("/ping").status_code == 200


def test_the_tokenizer_is_described(connect: Connect) -> None:
    info = connect().get("/tokenizer_info").json()
    assert info["tokenizer_class"] == "ByteTokenizer"
    assert info["chat_template"] == "tools, role: content"


def test_counters_have_vllms_own_names_where_they_are_switched_on(connect: Connect) -> None:
    lines = connect(_busy(), metric_aliases=True).get("/metrics").text.splitlines()
    assert "vllm:spec_decode_num_drafts_total 10.0" in lines
    assert "vllm:spec_decode_num_draft_tokens_total 40.0" in lines
    assert "vllm:spec_decode_num_accepted_tokens_total 25.0" in lines
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 8.0' in lines
    assert "dspark:spec_decode_num_drafts_total 10.0" in lines
    assert "vllm:" not in connect(_busy()).get("/metrics").text


def test_log_probability_fields_have_no_effect_without_return_logprob(connect: Connect) -> None:
    body = {"text": "hi", "logprob_start_len": 0, "top_logprobs_num": 2, "return_logprob": False}
    meta = connect().post("/generate", json=body).json()["meta_info"]
    assert "output_token_logprobs" not in meta


@pytest.mark.parametrize("stream", [False, True])
def test_no_new_tokens_score_the_prompt(connect: Connect, stream: bool) -> None:
    body = {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "stream": stream,
    }
    response = connect().post("/generate", json=body)
    result = events_of(response.text)[-1] if stream else response.json()
    meta = result["meta_info"]
    assert (result["text"], result["output_ids"], meta["completion_tokens"]) == ("", [], 0)
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"] == 3
    assert meta["output_token_logprobs"] == []


def test_a_prompt_that_is_only_scored_has_all_logprobs_by_default(connect: Connect) -> None:
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    meta = connect().post("/generate", json=body).json()["meta_info"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    body["logprob_start_len"] = -1
    meta = connect().post("/generate", json=body).json()["meta_info"]
    assert meta["input_token_logprobs"] == []


def test_no_tokens_with_echo_score_the_prompt(connect: Connect) -> None:
    client = connect()
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 0, "echo": True, "logprobs": 1}
    result = client.post("/v1/completions", json=body).json()
    (choice,) = result["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("hi", "length")
    assert len(choice["logprobs"]["tokens"]) == 3
    assert result["usage"]["completion_tokens"] == 0
    error = error_of(client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 0}))
    assert "echo" in error["message"]


def test_the_stop_stays_in_the_text_on_request(connect: Connect) -> None:
    client = connect()
    native = {"text": "hi", "sampling_params": {"stop": ["lo"], "no_stop_trim": True}}
    assert client.post("/generate", json=native).json()["text"] == "hello"
    body = {"prompt": "hi", "stop": ["lo"], "include_stop_str_in_output": True}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert (choice["text"], choice["stop_reason"], choice["matched_stop"]) == ("hello", "lo", "lo")
    token = {"prompt": "hi", "stop_token_ids": [ord("e")], "include_stop_str_in_output": True}
    assert client.post("/v1/completions", json=token).json()["choices"][0]["text"] == "he"


@pytest.mark.parametrize("stream", [False, True])
def test_a_regex_ends_the_output_and_is_named(connect: Connect, stream: bool) -> None:
    client = connect()
    stops = {"stop": ["world"], "stop_regex": ["l+o", "o w.*"]}
    native = {"text": "hi", "sampling_params": stops, "stream": stream}
    response = client.post("/generate", json=native)
    result = events_of(response.text)[-1] if stream else response.json()
    assert result["text"] == "he"
    assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": "l+o"}
    for extra, text in (({}, "he"), ({"no_stop_trim": True}, "hello")):
        body = {"prompt": "hi", **stops, **extra, "stream": stream}
        response = client.post("/v1/completions", json=body)
        chunks = events_of(response.text) if stream else [response.json()]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
        assert chunks[-1]["choices"][0]["matched_stop"] == "l+o"
        assert chunks[-1]["choices"][0]["stop_reason"] == "l+o"


def test_a_chat_continues_the_last_message(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine)
    body: dict[str, Any] = {
        "messages": [USER, {"role": "assistant", "content": "I am"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert bytes(i for i in engine.requests[0].prompt_ids if i < 256).endswith(b"assistant: I am")
    both = {**body, "add_generation_prompt": True}
    for route in ("/v1/chat/completions", "/tokenize"):
        error = error_of(client.post(route, json=both))
        assert error["param"] == "continue_final_message"
        assert "exclude each other" in error["message"]
    body["messages"] = [USER]
    error = error_of(client.post("/v1/chat/completions", json=body))
    assert error["param"] == "continue_final_message"


@pytest.mark.parametrize("priority", [None, -3, 5.0])
def test_the_priority_reaches_the_engine_from_every_route(
    connect: Connect, priority: float | None
) -> None:
    engine = FakeEngine()
    client = connect(engine)
    field = {} if priority is None else {"priority": priority}
    for route, body in BODIES.items():
        assert client.post(route, json={**body, **field}).status_code == 200
    assert {request.priority for request in engine.requests} == {priority or 0}
    error = error_of(client.post("/generate", json={"text": "hi", "priority": "high"}))
    assert error["param"] == "priority"


def test_fields_without_effect_are_accepted(connect: Connect) -> None:
    client = connect()
    native = {
        "text": "hi",
        "model": "any",
        "sampling_params": {"spaces_between_special_tokens": False},
    }
    assert client.post("/generate", json=native).status_code == 200
    chat = {
        "messages": [USER],
        "verbosity": "medium",
        "spaces_between_special_tokens": False,
    }
    assert client.post("/v1/chat/completions", json=chat).status_code == 200


# What clients send that write out every default of SGLang's and vLLM's request classes.
DEFAULTS: dict[str, dict[str, Any]] = {
    "/generate": {
        **{
            "return_logprob": None,
            "top_logprobs_num": None,
            "stream": None,
            "bootstrap_host": None,
        },
        **{"lora_path": "", "return_hidden_states": False, "log_metrics": True, "no_logs": False},
        **{"stream_options": {"include_usage": True}, "background": False, "return_bytes": False},
    },
    "/v1/completions": {
        **{
            "bad_words": [],
            "allowed_token_ids": None,
            "add_special_tokens": True,
            "vllm_xargs": None,
        },
        **{
            "return_weight_versions": False,
            "session_params": None,
            "custom_params": {},
            "echo": None,
        },
    },
    "/v1/chat/completions": {
        **{"separate_reasoning": True, "stream_reasoning": True, "include_reasoning": True},
        **{
            "echo": False,
            "add_special_tokens": False,
            "documents": None,
            "return_meta_info": False,
        },
        "stream_options": {"include_usage": None, "chunk_include_usage": None},
    },
    "/v1/responses": {
        **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
        **{"spaces_between_special_tokens": True, "enable_response_messages": False, "extra": None},
    },
    "/v1/messages": {"betas": None, "kv_transfer_params": None, "chat_template_kwargs": None},
}


@pytest.mark.parametrize("route", DEFAULTS)
@pytest.mark.parametrize("field", ["each", "all"])
def test_values_that_change_nothing_are_accepted(connect: Connect, route: str, field: str) -> None:
    client, fields = connect(), DEFAULTS[route]
    stream = {"stream": True} if "stream_options" in fields else {}
    for sent in [{k: v} for k, v in fields.items()] if field == "each" else [fields]:
        response = client.post(route, json={**BODIES[route], **stream, **sent})
        assert response.status_code == 200, (sent, response.text)


@pytest.mark.parametrize("route", DEFAULTS)
def test_other_values_of_the_same_fields_are_refused_by_name(connect: Connect, route: str) -> None:
    client = connect()
    served = {"return_logprob", "top_logprobs_num", "stream", "stream_options", "echo"}
    ignored = {"log_metrics", "no_logs", "spaces_between_special_tokens"}
    for name in DEFAULTS[route].keys() - served - ignored:
        response = client.post(route, json={**BODIES[route], name: ["other"]})
        assert response.status_code == 400
        assert name in response.text


def test_null_is_refused_where_a_value_is_needed(connect: Connect) -> None:
    client = connect()
    assert (
        "send exactly one of" in error_of(client.post("/generate", json={"text": None}))["message"]
    )
    for route, name in (("/v1/completions", "prompt"), ("/v1/chat/completions", "messages")):
        assert error_of(client.post(route, json={name: None}))["param"] == name


def test_several_texts_are_tokenized_at_once(connect: Connect) -> None:
    client = connect()
    result = client.post(
        "/tokenize",
        json={"prompt": ["a", "bc"], "add_special_tokens": False, "return_token_strs": True},
    ).json()
    assert result["tokens"] == [[97], [98, 99]]
    assert result["count"] == [1, 2]
    assert result["token_strs"] == [["a"], ["b", "c"]]
