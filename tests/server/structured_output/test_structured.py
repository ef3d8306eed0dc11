"""Structured output on every route, with every grammar field."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import numpy as np
import pytest

from engine import FinishReason
from tests.server.conftest import Connect
from tests.support.server.byte_text import NUM_IDS
from tests.support.server.clients import chat
from tests.support.server.fakes import FakeEngine
from tests.support.server.grammar_cases import IN_ASCII
from tests.support.server.tiny_service import TinyService, tiny_service

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
SCHEMA["additionalProperties"] = False
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}


def body_for(route: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a body with the fields at the route's place."""
    if route == GENERATE:
        params = {"max_new_tokens": more.pop("max_tokens", 60), "temperature": 1.0, **fields}
        return {"text": "hi", "sampling_params": params, **more}
    prompt = {"messages": USER} if route == CHAT else {"prompt": "hi"}
    return {**prompt, "max_tokens": 60, **fields, **more}


def text_of(completion: dict[str, Any]) -> str:
    if "text" in completion:
        return str(completion["text"])
    choice = completion["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyService]:
    with tiny_service(tmp_path_factory.mktemp("grammar"), log_requests=False) as tiny:
        yield tiny


EVERYWHERE: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"json_schema": json.dumps(SCHEMA)},
    {"regex": r'\{"a": ?[12]\}'},
    {"ebnf": 'root ::= "{\\"a\\": " [12] "}"'},
    {"ebnf": 'start: "{" /"a": / ("1" | "2") "}"'},
    {"choice": ['{"a": 1}', '{"a": 2}']},
]
OPENAI: list[dict[str, Any]] = [
    {"response_format": FORMAT},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"regex": r'\{"a": ?[12]\}', "disable_fallback": None}},
    {"structured_outputs": {"grammar": 'root ::= "{\\"a\\": " [12] "}"', "json_object": False}},
    {"guided_json": SCHEMA},
    {"guided_regex": r'\{"a": ?[12]\}'},
    {"guided_choice": ['{"a": 1}', '{"a": 2}']},
    {"guided_grammar": 'root ::= "{\\"a\\": " [12] "}"'},
]
NAMES = [(route, fields) for fields in EVERYWHERE for route in (GENERATE, COMPLETIONS, CHAT)]
NAMES += [(route, fields) for fields in OPENAI for route in (COMPLETIONS, CHAT)]


def test_every_grammar_field_works_on_every_route_that_has_it(service: TinyService) -> None:
    for route, fields in NAMES:
        response = httpx.post(service.url + route, json=body_for(route, fields), timeout=60)
        assert response.status_code == 200, (route, fields, response.text)
        completion = response.json()
        assert json.loads(text_of(completion))["a"] in (1, 2), (route, fields)
        if route != GENERATE:
            assert completion["choices"][0]["finish_reason"] == "stop"
        else:
            assert completion["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}


OPEN: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("setting", [False, True])
@pytest.mark.parametrize("field", [None, False, True])
def test_a_field_or_the_server_opens_the_objects_of_schemas_on_every_route(
    connect: Connect, setting: bool, field: bool | None
) -> None:
    engine = FakeEngine()
    client = connect(engine, additional_properties=setting)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": OPEN}}
    own = {"type": "json_schema", "schema": OPEN}
    bodies: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("/generate", {"text": "hi"}, {"json_schema": OPEN}),
        ("/v1/completions", {"prompt": "hi"}, {"json_schema": OPEN}),
        ("/v1/chat/completions", {"messages": USER}, {"response_format": form}),
        ("/v1/responses", {"input": "hi"}, {"text": {"format": {**own, "name": "x"}}}),
        (
            "/v1/messages",
            {"model": "tiny", "messages": USER, "max_tokens": 9},
            {"output_config": {"format": own}},
        ),
    ]
    for route, prompt, grammar in bodies:
        params = {**grammar, "additional_properties": field}
        fields = {"sampling_params": params} if route == GENERATE else params
        response = client.post(route, json={**prompt, **fields})
        assert response.status_code == 200, response.text
        mask = engine.requests[-1].token_mask
        assert mask is not None
        words = np.zeros(-(-NUM_IDS // 32), dtype=np.uint32)
        mask.fill(list(b'{"a":1'), words)
        allows_more = bool(words[ord(",") // 32] >> (ord(",") % 32) & 1)
        assert allows_more is (setting if field is None else field), route


def test_a_json_object_is_any_object(service: TinyService) -> None:
    for fields in (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}},
        {"structured_outputs": {"json_object": True}},
    ):
        body = body_for(CHAT, fields, max_tokens=140, seed=5)
        completion = httpx.post(service.url + CHAT, json=body, timeout=60).json()
        text, reason = text_of(completion), completion["choices"][0]["finish_reason"]
        assert text.startswith("{")
        assert reason == "length" or isinstance(json.loads(text), dict)


def test_response_format_text_sets_no_mask(connect: Connect) -> None:
    engine = FakeEngine()
    body = body_for(CHAT, {"response_format": {"type": "text"}, "structured_outputs": {}})
    assert connect(engine).post(CHAT, json=body).status_code == 200
    assert engine.requests[0].token_mask is None


@pytest.mark.parametrize(
    ("route", "fields", "param", "words"),
    [
        (CHAT, {"regex": "a", "ebnf": "b"}, "ebnf", "both set a grammar"),
        (CHAT, {"response_format": FORMAT, "guided_regex": "a"}, "guided_regex", "both set"),
        (GENERATE, {"regex": "a", "choice": ["b"]}, "sampling_params.choice", "both set"),
        (GENERATE, {"regex": "(a"}, "sampling_params.regex", "unclosed"),
        (COMPLETIONS, {"choice": []}, "choice", "at least one"),
        (COMPLETIONS, {"choice": ["a", ""]}, "choice", "empty"),
        (COMPLETIONS, {"json_schema": "{"}, "json_schema", "must be a JSON schema"),
        (COMPLETIONS, {"json_schema": 3}, "json_schema", "must be a JSON schema"),
        (COMPLETIONS, {"json_schema": False}, "json_schema", "allows no value"),
        (CHAT, {"structured_outputs": {"what": 1}}, "structured_outputs.what", "not supported"),
        (CHAT, {"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", ""),
        (CHAT, {"structured_outputs": {"choice": [1]}}, "structured_outputs.choice", "strings"),
        (CHAT, {"response_format": {"type": "grammar"}}, "response_format.type", "json_schema"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema", ""),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schem": {}}}},
            "response_format.json_schema.schem",
            "unknown field",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"strict": "yes"}}},
            "response_format.json_schema.strict",
            "true or false",
        ),
        (
            CHAT,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"properties": {"a": {"not": {}}}}},
                }
            },
            "response_format.json_schema.schema",
            "at /properties/a:",
        ),
    ],
)
def test_an_invalid_grammar_field_is_named(
    connect: Connect, route: str, fields: dict[str, Any], param: str, words: str
) -> None:
    engine = FakeEngine()
    response = connect(engine).post(route, json=body_for(route, fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"]
    assert engine.requests == []


def test_an_invalid_grammar_of_one_prompt_is_named_with_its_index(connect: Connect) -> None:
    params = [{"max_new_tokens": 3}, {"max_new_tokens": 3, "regex": "("}]
    body = {"text": ["a", "b"], "sampling_params": params}
    error = connect(FakeEngine()).post(GENERATE, json=body).json()["error"]
    assert error["param"] == "sampling_params.1.regex"


def test_a_grammar_that_fails_during_generation_ends_with_an_error(connect: Connect) -> None:
    """The engine violates the mask, which has the same effect as exceeding a limit."""

    def violate(request: Any) -> list[int]:
        request.token_mask.commit(ord("b"))
        return [ord("a")] * 5

    client = connect(FakeEngine(violate))
    error = client.post(COMPLETIONS, json=body_for(COMPLETIONS, {"regex": "a{5}"})).json()["error"]
    assert error["code"] == "grammar_too_complex"
    body = body_for(COMPLETIONS, {"regex": "a{5}"}, stream=True)
    assert '"grammar_too_complex"' in client.post(COMPLETIONS, json=body).text


@pytest.mark.parametrize("num_together", [1, 8, 16])
def test_finished_outputs_of_bounded_schemas_are_valid(
    service: TinyService, num_together: int
) -> None:
    """With random weights at temperature 1 only the grammar makes the outputs JSON."""
    lengths = []

    async def one(client: httpx.AsyncClient, turn: asyncio.Semaphore, at: int, name: str) -> None:
        schema = IN_ASCII[name]
        response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = body_for(CHAT, {"response_format": response_format}, max_tokens=140, seed=at)
        async with turn:
            text, reason = await chat(client, body, stream=at % 2 == 1)
        lengths.append(reason == FinishReason.LENGTH)
        if reason == FinishReason.STOP:
            jsonschema_rs.validator_for(schema).validate(json.loads(text))

    async def all_of_them() -> None:
        turn = asyncio.Semaphore(num_together)
        async with httpx.AsyncClient(base_url=service.url, timeout=120) as client:
            await asyncio.gather(
                *(one(client, turn, at + num_together, name) for at, name in enumerate(IN_ASCII))
            )

    asyncio.run(all_of_them())
    service.wait_until_idle()
    assert len(lengths) == len(IN_ASCII)
    assert sum(lengths) <= 3


def test_each_choice_of_one_prompt_follows_the_grammar(service: TinyService) -> None:
    body = body_for(COMPLETIONS, {"choice": ["aa", "ab", "ba", "bb"], "n": 12, "seed": 1})
    completion = httpx.post(service.url + COMPLETIONS, json=body, timeout=60).json()
    texts = [choice["text"] for choice in completion["choices"]]
    assert set(texts) <= {"aa", "ab", "ba", "bb"}
    assert len(set(texts)) > 1


def test_a_stop_string_still_cuts_a_grammar_short(service: TinyService) -> None:
    body = body_for(COMPLETIONS, {"regex": "abc{5}d", "stop": ["cc"]})
    completion = httpx.post(service.url + COMPLETIONS, json=body, timeout=60).json()
    assert (completion["choices"][0]["text"], completion["choices"][0]["finish_reason"]) == (
        "ab",
        "stop",
    )
    assert completion["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    "options", [{"ignore_eos": True}, {"min_tokens": 9}, {"top_k": 1}, {"temperature": 1e308}]
)
def test_a_complete_grammar_ends_the_output_with_any_options(
    service: TinyService, options: dict[str, Any]
) -> None:
    body = body_for(COMPLETIONS, {"regex": "x{4}", **options, "logprobs": 2})
    choice = httpx.post(service.url + COMPLETIONS, json=body, timeout=60).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("xxxx", "stop")
    assert len(choice["logprobs"]["tokens"]) == 4
