"""Sampling options and log probabilities on every route."""

from typing import Any
from unittest.mock import patch

import pytest

from engine import EngineSamplingParams
from tests.server.conftest import Connect
from tests.support.server.byte_text import BOS, EOS, ByteTokenizer
from tests.support.server.fakes import FakeEngine
from tests.support.server.responses import events_of

PARAMS = "sampling_params"
OPTIONS = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.25,
    "logit_bias": {"7": 3, "8": -1.5},
    "temperature": 0,
}
EXPECTED = EngineSamplingParams(
    max_new_tokens=9,
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    logit_bias=((7, 3.0), (8, -1.5)),
    min_new_tokens=4,
)
USER = [{"role": "user", "content": "hi"}]


def _bodies(name: str = "min_tokens", **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return one body per route, with the fields at the route's place."""
    native = {**fields, "min_new_tokens": 4, "max_new_tokens": 9}
    openai = {**fields, "min_tokens": 4, "max_tokens": 9}
    return [
        ("/generate", {"text": "hi", PARAMS: native}),
        ("/v1/completions", {"prompt": "hi", **openai}),
        ("/v1/chat/completions", {"messages": USER, **openai}),
    ]


@pytest.mark.parametrize("at", range(3))
def test_options_reach_the_engine_from_every_route(connect: Connect, at: int) -> None:
    engine = FakeEngine()
    route, body = _bodies(**OPTIONS)[at]
    assert connect(engine).post(route, json=body).status_code == 200
    assert engine.requests[0].params == EXPECTED


@pytest.mark.parametrize("at", range(3))
def test_a_missing_repetition_penalty_is_the_models(connect: Connect, at: int) -> None:
    engine = FakeEngine()
    client = connect(engine, default_sampling={"repetition_penalty": 1.1})
    route, body = _bodies()[at]
    client.post(route, json=body)
    assert engine.requests[0].params.repetition_penalty == 1.1


@pytest.mark.parametrize("at", range(3))
def test_seed_minus_one_is_random_and_top_k_zero_is_off(connect: Connect, at: int) -> None:
    engine = FakeEngine()
    route, body = _bodies(seed=-1, top_k=0)[at]
    assert connect(engine, default_sampling={"top_k": 20}).post(route, json=body).status_code == 200
    assert (engine.requests[0].params.seed, engine.requests[0].params.top_k) == (None, -1)


def test_sampling_seed_minus_one_is_random(connect: Connect) -> None:
    engine = FakeEngine()
    connect(engine).post("/generate", json={"text": "hi", PARAMS: {"sampling_seed": -1}})
    assert engine.requests[0].params.seed is None


def test_reasoning_effort_none_turns_thinking_off_in_the_template(connect: Connect) -> None:
    engine = FakeEngine()
    with patch.object(
        ByteTokenizer, "apply_chat_template", autospec=True, return_value="text"
    ) as template:
        for fields in ({}, {"reasoning_effort": "none"}):
            body = {"messages": USER, **fields}
            connect(engine).post("/v1/chat/completions", json=body).raise_for_status()
    options = [call.kwargs for call in template.call_args_list]
    assert "enable_thinking" not in options[0]
    assert options[1]["enable_thinking"] is False


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("stream", [False, True])
def test_choices_differ_only_in_their_index(connect: Connect, at: int, stream: bool) -> None:
    engine = FakeEngine(lambda request: b"abc"[request.choice :])
    route, body = _bodies(n=3, seed=5)[at]
    response = connect(engine).post(route, json={**body, "stream": stream})
    assert response.status_code == 200, response.text
    assert sorted(request.choice for request in engine.requests) == [0, 1, 2]
    assert {(r.prompt_ids, r.params) for r in engine.requests} == {
        (engine.requests[0].prompt_ids, engine.requests[0].params)
    }
    assert engine.requests[0].params.seed == 5
    texts = {0: "", 1: "", 2: ""}
    if stream:
        for event in events_of(response.text):
            for part in event.get("choices", [event]):
                text = part.get("text", part.get("delta", {}).get("content")) or ""
                is_all = at == 0  # native events have all text so far
                texts[part["index"]] = text if is_all else texts[part["index"]] + text
    else:
        completion = response.json()
        parts = completion if at == 0 else completion["choices"]
        for i, part in enumerate(parts):
            texts[i] = part.get("text") or part["message"]["content"]
    assert texts == {0: "abc", 1: "bc", 2: "c"}


def test_usage_counts_a_prompt_once_for_all_choices(connect: Connect) -> None:
    engine = FakeEngine("abc")
    body = {"prompt": ["hi", "you"], "n": 2, "max_tokens": 3}
    whole = connect(engine).post("/v1/completions", json=body).json()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    last = events_of(connect(engine).post("/v1/completions", json=streamed).text)[-1]
    for usage in (whole["usage"], last["usage"]):
        assert usage["prompt_tokens"] == 3 + 4
        assert usage["completion_tokens"] == 4 * 3
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]


def test_each_choice_has_an_id(connect: Connect) -> None:
    body = {"text": "hi", "rid": "r", PARAMS: {"n": 2}}
    completions = connect(FakeEngine("a")).post("/generate", json=body).json()
    assert [completion["meta_info"]["id"] for completion in completions] == ["r-0", "r-1"]


def test_stops_before_min_new_tokens_are_ignored(connect: Connect) -> None:
    """min_new_tokens 4: the stop that token 2 completes does not count, the next one does."""
    engine = FakeEngine("xaxaxaxa")
    params = {"min_new_tokens": 4, "stop": ["xa"], "max_new_tokens": 8}
    for stream in (False, True):
        body = {"text": "hi", PARAMS: params, "stream": stream}
        response = connect(engine).post("/generate", json=body)
        completion = events_of(response.text)[-1] if stream else response.json()
        assert completion["text"] == "xa"
        assert completion["output_ids"] == [*b"xaxa"]
        assert completion["meta_info"]["finish_reason"] == {"type": "stop", "matched": "xa"}


# -- log probabilities -------------------------------------------------------------------------


def test_native_logprobs_have_an_entry_for_every_id(connect: Connect) -> None:
    body = {
        "text": "hi",
        "return_logprob": True,
        "top_logprobs_num": 1,
        "logprob_start_len": 0,
        "return_text_in_logprobs": True,
    }
    meta = connect(FakeEngine("ab")).post("/generate", json=body).json()["meta_info"]
    assert meta["output_token_logprobs"] == [
        [-0.97, 97, "a"],
        [-0.98, 98, "b"],
        [-2.57, EOS, "</s>"],
    ]
    assert meta["input_token_logprobs"] == [
        [None, BOS, "<s>"],
        [-1.04, 104, "h"],
        [-1.05, 105, "i"],
    ]
    assert meta["output_top_logprobs"] == [[[0.0, 65, "A"]]] * 3
    assert meta["input_top_logprobs"] == [None, [[0.0, 65, "A"]], [[0.0, 65, "A"]]]


@pytest.mark.parametrize(("start", "expected"), [(-1, []), (2, [[-1.05, 105, None]]), (9, [])])
def test_native_prompt_logprobs_begin_at_logprob_start_len(
    connect: Connect, start: int, expected: list[Any]
) -> None:
    body = {"text": "hi", "return_logprob": True, "logprob_start_len": start}
    meta = connect(FakeEngine("ab")).post("/generate", json=body).json()["meta_info"]
    assert meta["input_token_logprobs"] == expected
    assert len(meta["output_token_logprobs"]) == 3
    assert "output_top_logprobs" not in meta


@pytest.mark.parametrize("is_incremental", [False, True])
def test_native_streams_have_one_logprob_per_id(connect: Connect, is_incremental: bool) -> None:
    body = {
        "text": "hi",
        "return_logprob": True,
        "logprob_start_len": 0,
        "stream": True,
        "incremental_stream_output": is_incremental,
    }
    events = events_of(connect(FakeEngine("hello wörld")).post("/generate", json=body).text)
    for event in events:
        logprobs = event["meta_info"]["output_token_logprobs"]
        assert [token_id for _, token_id, _ in logprobs] == event["output_ids"]
    whole = connect(FakeEngine("hello wörld")).post("/generate", json={**body, "stream": False})
    expected = whole.json()["meta_info"]
    for name in ("output_token_logprobs", "input_token_logprobs"):
        logprobs = [entry for event in events for entry in event["meta_info"][name]]
        assert (logprobs if is_incremental else events[-1]["meta_info"][name]) == expected[name]


@pytest.mark.parametrize("stream", [False, True])
def test_native_logprobs_of_named_tokens_have_sglangs_names(connect: Connect, stream: bool) -> None:
    body = {
        "text": ["hi", "a"],
        "return_logprob": True,
        "logprob_start_len": 1,
        "token_ids_logprob": [[66, 5], [7]],
        "stream": stream,
    }
    response = connect(FakeEngine("ab")).post("/generate", json=body)
    if stream:
        first, second = ([e for e in events_of(response.text) if e["index"] == i] for i in (0, 1))
        metas = [first[-1]["meta_info"], second[-1]["meta_info"]]
    else:
        metas = [each["meta_info"] for each in response.json()]
    assert metas[0]["output_token_ids_logprobs"] == [[[-0.66, 66, None], [-0.05, 5, None]]] * 3
    assert metas[0]["input_token_ids_logprobs"] == [[[-0.66, 66, None], [-0.05, 5, None]]] * 2
    assert metas[1]["output_token_ids_logprobs"] == [[[-0.07, 7, None]]] * 3


def test_one_list_of_named_tokens_counts_for_all_prompts(connect: Connect) -> None:
    body = {"text": ["hi", "a"], "return_logprob": True, "token_ids_logprob": [7]}
    for each in connect(FakeEngine("a")).post("/generate", json=body).json():
        assert each["meta_info"]["output_token_ids_logprobs"] == [[[-0.07, 7, None]]] * 2
    body["return_logprob"] = False
    (first, _) = connect(FakeEngine("a")).post("/generate", json=body).json()
    assert "output_token_ids_logprobs" not in first["meta_info"]


PROMPT_LOGPROBS = [
    None,
    {
        "104": {"logprob": -1.04, "rank": 105, "decoded_token": "h"},
        "65": {"logprob": 0.0, "rank": 1, "decoded_token": "A"},
    },
    {
        "105": {"logprob": -1.05, "rank": 106, "decoded_token": "i"},
        "65": {"logprob": 0.0, "rank": 1, "decoded_token": "A"},
    },
]


@pytest.mark.parametrize("stream", [False, True])
def test_completions_have_vllms_prompt_logprobs_in_each_choice(
    connect: Connect, stream: bool
) -> None:
    body = {"prompt": ["hi", "hi"], "prompt_logprobs": 1, "logprobs": 0, "stream": stream}
    response = connect(FakeEngine("ab")).post("/v1/completions", json=body)
    events = events_of(response.text) if stream else [response.json()]
    choices = [choice for event in events for choice in event["choices"]]
    found = [choice["prompt_logprobs"] for choice in choices if "prompt_logprobs" in choice]
    assert found == [PROMPT_LOGPROBS] * 2
    tops = [top for c in choices if c["logprobs"] for top in c["logprobs"]["top_logprobs"]]
    assert [len(top) for top in tops] == [1] * 6


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_prompt_logprobs_once(connect: Connect, stream: bool) -> None:
    engine = FakeEngine("ab")
    body = {"messages": USER, "prompt_logprobs": 1, "n": 2, "stream": stream}
    response = connect(engine).post("/v1/chat/completions", json=body)
    events = events_of(response.text) if stream else [response.json()]
    (found,) = [event["prompt_logprobs"] for event in events if "prompt_logprobs" in event]
    assert found[0] is None
    assert len(found) == len(engine.requests[0].prompt_ids)
    assert not any(choice["logprobs"] for event in events for choice in event["choices"])


def test_prompt_logprobs_score_a_prompt_without_output(connect: Connect) -> None:
    body = {"prompt": "hi", "prompt_logprobs": 1, "max_tokens": 0}
    (choice,) = connect(FakeEngine("ab")).post("/v1/completions", json=body).json()["choices"]
    assert (choice["text"], choice["prompt_logprobs"]) == ("", PROMPT_LOGPROBS)


def test_chat_logprobs_have_text_and_bytes_of_each_token(connect: Connect) -> None:
    body = {"messages": USER, "logprobs": True, "top_logprobs": 2}
    completion = connect(FakeEngine("a")).post("/v1/chat/completions", json=body).json()
    first, last = completion["choices"][0]["logprobs"]["content"]
    assert first == {
        "token": "a",
        "logprob": -0.97,
        "bytes": [97],
        "top_logprobs": [
            {"token": "A", "logprob": 0.0, "bytes": [65]},
            {"token": "B", "logprob": -0.5, "bytes": [66]},
        ],
    }
    assert last["token"] == "</s>"
    assert completion["usage"]["completion_tokens"] == 2


def test_chat_logprobs_are_null_by_default(connect: Connect) -> None:
    completion = connect().post("/v1/chat/completions", json={"messages": USER}).json()
    assert completion["choices"][0]["logprobs"] is None


def test_completion_logprobs_are_four_lists_of_one_length(connect: Connect) -> None:
    body = {"prompt": "hi", "logprobs": 1}
    choice = connect(FakeEngine("ab")).post("/v1/completions", json=body).json()["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "</s>"],
        "token_logprobs": [-0.97, -0.98, -2.57],
        "top_logprobs": [
            {"A": 0.0, "a": -0.97},
            {"A": 0.0, "b": -0.98},
            {"A": 0.0, "</s>": -2.57},
        ],
        "text_offset": [0, 1, 2],
    }


@pytest.mark.parametrize("prompt", ["hi", [104, 105]])
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_puts_the_prompt_and_its_logprobs_first(
    connect: Connect, prompt: Any, stream: bool
) -> None:
    body = {"prompt": prompt, "logprobs": 0, "echo": True, "stream": stream}
    response = connect(FakeEngine("ab", tokens_per_step=1)).post("/v1/completions", json=body)
    events = events_of(response.text) if stream else [response.json()]
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["text"] for choice in choices) == "hiab"
    logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    tokens = [value for each in logprobs for value in each["tokens"]]
    values = [value for each in logprobs for value in each["token_logprobs"]]
    own = ["<s>"] if prompt == "hi" else []
    assert tokens == [*own, "h", "i", "a", "b", "</s>"]
    assert values[0] is None
    assert None not in values[1:]
    offsets = [value for each in logprobs for value in each["text_offset"]]
    assert offsets == [0] * len(own) + [0, 1, 2, 3, 4]  # the text leaves out <s>


@pytest.mark.parametrize("stream", [False, True])
def test_text_offset_counts_a_character_once_for_all_of_its_tokens(
    connect: Connect, stream: bool
) -> None:
    engine = FakeEngine("é👍a", tokens_per_step=1)
    body = {"prompt": "hi", "logprobs": 0, "stream": stream}
    response = connect(engine).post("/v1/completions", json=body)
    events = events_of(response.text) if stream else [response.json()]
    choices = [choice for event in events for choice in event["choices"]]
    offsets = [n for c in choices if c["logprobs"] for n in c["logprobs"]["text_offset"]]
    assert offsets == [0, 0, 1, 1, 1, 1, 2, 3]


def test_an_echo_without_logprobs_is_only_text(connect: Connect) -> None:
    engine = FakeEngine("ab")
    body = {"prompt": "hi", "echo": True, "n": 2}
    completion = connect(engine).post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in completion["choices"]] == ["hiab", "hiab"]
    assert engine.requests[0].params.prompt_logprobs_from is None


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("token_by_token", [False, True])
def test_openai_streams_have_one_logprob_per_token_also_for_partial_characters(
    connect: Connect, route: str, token_by_token: bool
) -> None:
    prompt = {"prompt": "hi"} if route == "/v1/completions" else {"messages": USER}
    body = {**prompt, "logprobs": True if "messages" in prompt else 0, "stream": True}
    body["stream_options"] = {"include_usage": True, "token_by_token": token_by_token}
    engine = FakeEngine("日本👍 e\u0301", tokens_per_step=2)
    events = events_of(connect(engine).post(route, json=body).text)
    logprobs = [c["logprobs"] for event in events for c in event["choices"] if c["logprobs"]]
    count = sum(len(each.get("content") or each["tokens"]) for each in logprobs)
    assert count == events[-1]["usage"]["completion_tokens"]
    texts = [c.get("text", c.get("delta", {}).get("content")) for e in events for c in e["choices"]]
    assert "".join(text or "" for text in texts) == "日本👍 e\u0301"
