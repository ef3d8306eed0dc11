"""POST /generate, /tokenize and /detokenize."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import EngineSamplingParams
from tests.server.conftest import Connect
from tests.support.server.byte_text import BOS, EOS
from tests.support.server.fakes import FakeEngine
from tests.support.server.responses import events_of


def test_a_text_prompt_returns_text_ids_and_meta_info(connect: Connect) -> None:
    completion = (
        connect(FakeEngine("hello")).post("/generate", json={"text": "hi", "rid": "r1"}).json()
    )
    assert completion["text"] == "hello"
    assert completion["output_ids"] == [*b"hello", EOS]
    meta = completion["meta_info"]
    assert meta.pop("e2e_latency") > 0
    assert meta == {
        "id": "r1",
        "finish_reason": {"type": "stop", "matched": EOS},
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "cached_tokens": 1,
        "queue_time": 0.001,
        "prefill_time": 0.002,
        "decode_time": 0.003,
        "spec_accept_length": pytest.approx(1 + 4 / 3),
        "spec_accept_rate": pytest.approx(4 / 12),
        "spec_verify_ct": 3,
        "spec_accept_histogram": [1, 0, 2],
        "spec_accept_token_num": 4,
        "spec_draft_token_num": 12,
        "spec_sources": {
            "draft": {"rounds": 2, "drafted": 8, "accepted": 2},
            "lookup": {"rounds": 1, "drafted": 4, "accepted": 2},
            "target": {"rounds": 0, "drafted": 0, "accepted": 0},
        },
    }


@pytest.mark.parametrize(
    ("body", "prompt_ids"),
    [
        ({"text": "hi"}, [BOS, *b"hi"]),
        ({"input_ids": [7, 8]}, [7, 8]),
        ({"messages": [{"role": "user", "content": "hi"}]}, [*b"user: hi\nassistant: "]),
        (
            {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}] * 2}]},
            [*b"system: a\na\nassistant: "],
        ),
    ],
)
def test_each_kind_of_prompt_reaches_the_engine_as_ids(
    connect: Connect, body: dict[str, Any], prompt_ids: list[int]
) -> None:
    engine = FakeEngine()
    assert connect(engine).post("/generate", json=body).status_code == 200
    assert engine.requests[0].prompt_ids == tuple(prompt_ids)


def test_sampling_fields_reach_the_engine(connect: Connect) -> None:
    engine = FakeEngine()
    params = {
        "max_new_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "sampling_seed": 7,
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
    }
    connect(engine).post("/generate", json={"text": "hi", "sampling_params": params})
    assert engine.requests[0].params == EngineSamplingParams(
        max_new_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=7,
        stop_token_ids=frozenset({3, 4}),
        ignore_eos=True,
    )
    assert engine.requests[0].stop_scanner is None


def test_missing_sampling_fields_are_the_models_or_neutral(connect: Connect) -> None:
    engine = FakeEngine(max_len=100)
    client = connect(engine, default_sampling={"temperature": 0.6, "top_k": 20})
    client.post("/generate", json={"text": "hi"})
    client.post("/generate", json={"text": "hi", "sampling_params": {"temperature": None}})
    expected = EngineSamplingParams(
        max_new_tokens=97, temperature=0.6, top_k=20, top_p=1.0, min_p=0.0
    )
    assert [request.params for request in engine.requests] == [expected, expected]


def test_without_a_model_default_the_temperature_is_one(connect: Connect) -> None:
    engine = FakeEngine()
    connect(engine).post("/generate", json={"text": "hi"})
    assert engine.requests[0].params.temperature == 1.0


def test_a_large_top_k_is_off_and_a_tiny_temperature_is_greedy(
    connect: Connect,
) -> None:
    engine = FakeEngine()
    params = {"top_k": 10**9, "temperature": 1e-30}
    connect(engine).post("/generate", json={"text": "hi", "sampling_params": params})
    assert (engine.requests[0].params.top_k, engine.requests[0].params.temperature) == (-1, 0.0)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"max_len": 500}, 128),
        ({}, 97),
        ({"default_max_tokens": "fit", "max_len": 500}, 497),
        ({"default_max_tokens": 16}, 16),
        ({"default_max_tokens": 5000}, 97),
        ({"max_tokens_cap": 20}, 20),
        ({"default_max_tokens": 16, "max_tokens_cap": 8}, 8),
    ],
)
def test_a_request_without_max_new_tokens_gets_the_smallest_limit(
    connect: Connect, options: dict[str, Any], limit: int
) -> None:
    engine = FakeEngine(max_len=options.pop("max_len", 100))
    connect(engine, **options).post("/generate", json={"text": "hi"})
    assert engine.requests[0].params.max_new_tokens == limit


def test_a_list_of_prompts_returns_a_list_in_order(connect: Connect) -> None:
    engine = FakeEngine(lambda request: request.prompt_ids[1:])
    body = {
        "text": ["long enough", "ab"],
        "rid": ["first", "second"],
        "sampling_params": [{"max_new_tokens": 4}, {}],
    }
    completions = connect(engine).post("/generate", json=body).json()
    assert [completion["text"] for completion in completions] == ["long", "ab"]
    assert [completion["meta_info"]["id"] for completion in completions] == ["first", "second"]
    assert completions[0]["meta_info"]["finish_reason"] == {"type": "length", "length": 4}


def test_a_list_of_one_prompt_returns_a_list(connect: Connect) -> None:
    for body in ({"text": ["a"]}, {"input_ids": [[1]]}, {"messages": [[_user("a")]]}):
        assert isinstance(connect().post("/generate", json=body).json(), list), body


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_a_stream_has_all_text_so_far_and_ends_with_a_reason(connect: Connect) -> None:
    body = {"text": "hi", "stream": True}
    response = connect(FakeEngine("hello")).post("/generate", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert [event["text"] for event in events] == ["hel", "hello"]
    assert [event["output_ids"] for event in events] == [[*b"hel"], [*b"hello", EOS]]
    assert [event["meta_info"]["completion_tokens"] for event in events] == [3, 6]
    reasons = [event["meta_info"]["finish_reason"] for event in events]
    assert reasons == [None, {"type": "stop", "matched": EOS}]
    assert events[-1]["meta_info"]["spec_verify_ct"] == 3


def test_an_incremental_stream_has_only_new_text(connect: Connect) -> None:
    body = {"text": "hi", "stream": True, "incremental_stream_output": True}
    events = events_of(connect(FakeEngine("hello")).post("/generate", json=body).text)
    assert [event["text"] for event in events] == ["hel", "lo"]
    assert [event["output_ids"] for event in events] == [[*b"hel"], [*b"lo", EOS]]


def test_stream_events_of_several_prompts_have_an_index(connect: Connect) -> None:
    engine = FakeEngine(lambda request: request.prompt_ids[1:])
    body = {"text": ["abcdef", "xy"], "stream": True}
    events = events_of(connect(engine).post("/generate", json=body).text)
    last = {event["index"]: event["text"] for event in events}
    assert last == {0: "abcdef", 1: "xy"}


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.text("ab日👍é\u0301", max_size=12),
    stops=st.lists(st.text("ab日👍", min_size=1, max_size=3), max_size=2),
    tokens_per_step=st.integers(1, 9),
    limit=st.integers(1, 30),
)
def test_the_output_does_not_depend_on_streaming_or_tokens_per_step(
    connect: Connect, text: str, stops: list[str], tokens_per_step: int, limit: int
) -> None:
    params = {"stop": stops, "max_new_tokens": limit}
    one = FakeEngine(text, tokens_per_step=1)
    whole = connect(one).post("/generate", json={"text": "hi", "sampling_params": params}).json()
    body = {
        "text": "hi",
        "sampling_params": params,
        "stream": True,
        "incremental_stream_output": True,
    }
    some = FakeEngine(text, tokens_per_step=tokens_per_step)
    events = events_of(connect(some).post("/generate", json=body).text)
    assert "".join(event["text"] for event in events) == whole["text"]
    assert [i for event in events for i in event["output_ids"]] == whole["output_ids"]
    assert events[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]


def test_text_excludes_a_stop_string_and_ids_include_it(connect: Connect) -> None:
    params = {"stop": ["o w", "zzz"]}
    body = {"text": "hi", "sampling_params": params}
    completion = connect(FakeEngine("hello world")).post("/generate", json=body).json()
    assert completion["text"] == "hell"
    assert completion["output_ids"] == [*b"hello w"]
    assert completion["meta_info"]["finish_reason"] == {"type": "stop", "matched": "o w"}
    assert completion["meta_info"]["completion_tokens"] == 7


def test_text_excludes_a_stop_token_even_where_special_tokens_are_shown(connect: Connect) -> None:
    for stop_token_ids, matched in (([ord("o")], ord("o")), ([], EOS)):
        params = {"stop_token_ids": stop_token_ids, "skip_special_tokens": False}
        body = {"text": "hi", "sampling_params": params}
        completion = connect(FakeEngine("hello")).post("/generate", json=body).json()
        assert completion["text"] == ("hell" if stop_token_ids else "hello")
        assert completion["output_ids"][-1] == matched


@pytest.mark.parametrize("stream", [False, True])
def test_withheld_text_is_emitted_at_the_end(connect: Connect, stream: bool) -> None:
    for text, params, shown in (
        ("ab END", {"stop": "END!"}, "ab END"),
        ("ab END!", {"stop": "END!", "max_new_tokens": 5}, "ab EN"),
        ("ab日本", {"max_new_tokens": 7}, "ab日\ufffd"),
    ):
        body = {"text": "hi", "sampling_params": params, "stream": stream}
        response = connect(FakeEngine(text)).post("/generate", json=body)
        completion = events_of(response.text)[-1] if stream else response.json()
        assert completion["text"] == shown


def test_a_stop_takes_precedence_over_the_limit_on_the_same_token(connect: Connect) -> None:
    params = {"stop": "lo", "max_new_tokens": 5}
    body = {"text": "hi", "sampling_params": params}
    completion = connect(FakeEngine("hello")).post("/generate", json=body).json()
    assert completion["meta_info"]["finish_reason"]["type"] == "stop"


def test_an_ignored_eos_token_has_no_text(connect: Connect) -> None:
    params = {"ignore_eos": True, "max_new_tokens": 9}
    body = {"text": "hi", "sampling_params": params}
    completion = connect(FakeEngine("hello")).post("/generate", json=body).json()
    assert (completion["text"], len(completion["output_ids"])) == ("hello", 9)


def test_requests_of_sglangs_benchmark_are_accepted(connect: Connect) -> None:
    body = {
        "text": "hi",
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True},
        "stream": True,
        "lora_path": None,
        "return_logprob": False,
        "return_routed_experts": False,
        "logprob_start_len": -1,
    }
    *_, last = events_of(connect().post("/generate", json=body).text)
    assert last["meta_info"]["completion_tokens"] == 4


def test_tokenize_returns_the_prompt_ids_of_generate(connect: Connect) -> None:
    client = connect(FakeEngine(max_len=100))
    expected = {"tokens": [BOS, *b"hi"], "count": 3, "max_model_len": 100}
    assert client.post("/tokenize", json={"text": "hi"}).json() == expected
    assert client.post("/tokenize", json={"prompt": "hi", "model": "x"}).json() == expected
    plain = client.post("/tokenize", json={"text": "hi", "add_special_tokens": False}).json()
    assert plain["tokens"] == [*b"hi"]
    chat = client.post("/tokenize", json={"messages": [_user("hi")]}).json()
    assert bytes(chat["tokens"]) == b"user: hi\nassistant: "
    assert client.post("/tokenize", json={"text": ""}).json()["tokens"] == [BOS]


def test_detokenize_returns_text(connect: Connect) -> None:
    client = connect()
    tokens = [BOS, *"日".encode(), EOS]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"text": "日"}
    shown = client.post("/detokenize", json={"tokens": tokens, "skip_special_tokens": False})
    assert shown.json() == {"text": "<s>日</s>"}


def test_engine_request_ids_are_unique(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine)
    for _ in range(2):
        client.post("/generate", json={"text": "hi", "rid": "same"})
    first, second = (request.request_id for request in engine.requests)
    assert first != second


def test_each_request_with_stops_has_a_separate_scanner(connect: Connect) -> None:
    engine = FakeEngine()
    body = {"text": ["a", "b"], "sampling_params": {"stop": "x"}}
    connect(engine).post("/generate", json=body)
    scanners = [request.stop_scanner for request in engine.requests]
    assert None not in scanners
    assert scanners[0] is not scanners[1]


@pytest.mark.parametrize("keeps_special", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_that_is_a_special_token_ends_the_completion(
    connect: Connect, stream: bool, keeps_special: bool
) -> None:
    engine = FakeEngine(lambda request: [*b"ab", BOS, *b"c"])
    stop = "<s>" if keeps_special else "256"  # the byte tokenizer decodes 256 as <s>
    params = {"stop": [stop], "skip_special_tokens": not keeps_special}
    body = {"text": "hi", "sampling_params": params, "stream": stream}
    response = connect(engine).post("/generate", json=body)
    completion = events_of(response.text)[-1] if stream else response.json()
    assert completion["text"] == "ab"
    assert completion["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
