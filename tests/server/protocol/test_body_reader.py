"""A refusal costs little more than the parse of its body."""

import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from server.errors.validation_errors import InvalidBody, quote
from server.protocol.anthropic import MessagesBody
from server.protocol.body_reader import read_body
from server.protocol.json_scan import MAX_VALUES, bounds_error
from server.protocol.native import DetokenizeBody, GenerateBody, TokenizeBody
from server.protocol.openai import ChatBody, CompletionBody
from server.protocol.responses import ResponsesBody
from tests.support.server.large_bodies import ITEMS, large_bodies

MODELS: dict[str, type[BaseModel]] = {
    "/generate": GenerateBody,
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/messages": MessagesBody,
    "/v1/responses": ResponsesBody,
    "/detokenize": DetokenizeBody,
    "/tokenize": TokenizeBody,
}


def refusal(content: bytes, model: type[BaseModel]) -> InvalidBody | None:
    try:
        read_body(content, model)
    except InvalidBody as error:
        return error
    return None


def seconds(work: Callable[[], object], *, runs: int = 1) -> float:
    """Return the processor time of this thread, the least of some runs.

    Without garbage collection, whose cost depends on all other objects of the process.
    """

    def once() -> float:
        before = time.thread_time()
        work()
        return time.thread_time() - before

    gc.disable()
    try:
        return min(once() for _ in range(runs))
    finally:
        gc.enable()


def peak_mb(work: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def check_cost(name: str, content: bytes, model: type[BaseModel]) -> None:
    def bare() -> object:
        return json.loads(content)

    def read() -> object:
        return refusal(content, model)

    found = refusal(content, model)
    assert found is None or len(str(found)) < 1000, name
    extra_s = seconds(read) - seconds(bare)
    if extra_s >= 0.1:  # other work on the machine may have slowed one of them down
        extra_s = seconds(read, runs=3) - seconds(bare, runs=3)
    assert extra_s < 0.1, (name, len(content), extra_s)
    extra_mb = peak_mb(read) - peak_mb(bare)
    assert extra_mb < 50, (name, len(content), extra_mb)


def test_messages_about_wrong_lists_are_short() -> None:
    for name, route, content in large_bodies(2**15):
        found = refusal(content, MODELS[route])
        assert found is None or len(str(found)) < 1000, name


@pytest.mark.parametrize(
    ("field", "item"), [("stop", 1), ("stop", "a"), ("stop_token_ids", ""), ("choice", 1)]
)
def test_a_list_far_over_its_limit_costs_little_more_than_its_parse(
    field: str, item: object
) -> None:
    body = {"text": "a", "sampling_params": {field: [item] * 500_000}}
    check_cost(field, json.dumps(body).encode(), GenerateBody)


def test_four_megabytes_of_wrong_blocks_cost_little_more_than_their_parse() -> None:
    turn = {"role": "user", "content": [{"type": "bad"}] * 240_000}
    body = {"model": "tiny", "max_tokens": 1, "messages": [turn]}
    check_cost("blocks", json.dumps(body).encode(), MessagesBody)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2**10, 2**14, 2**18, 2**21, 2**23 - 2**12])
def test_every_list_of_every_size_is_refused_cheaply(size: int) -> None:
    for name, route, content in large_bodies(size, all_kinds=size <= 2**14):
        check_cost(name, content, MODELS[route])


def test_only_the_first_wrong_item_is_reported() -> None:
    body = {"text": "a", "sampling_params": {"stop": [1] * 200}}
    found = refusal(json.dumps(body).encode(), GenerateBody)
    assert found is not None
    assert found.param == "sampling_params.stop.0"
    assert str(found.message) == "'sampling_params.stop.0' must be a string; found 1"


@pytest.mark.parametrize("item", ITEMS)
def test_a_list_over_its_limit_is_refused_with_the_limit(item: object) -> None:
    body = {"text": ["a"], "rid": ["r"] * 1025}
    found = refusal(json.dumps(body).encode(), GenerateBody)
    assert found is not None
    assert "must have at most 1024 items; found 1025 items" in found.message
    assert found.param == "rid"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[" * 200 + "]" * 200, None),
        ("[" * 201 + "]" * 201, "levels"),
        ('{"a":' * 201 + "1" + "}" * 201, "levels"),
        ("[" * 100_000, "levels"),
        ("[" + "[]," * 500 + "[]]", None),
        (json.dumps("[{," * MAX_VALUES), None),
        (json.dumps('\\"[{,' * MAX_VALUES), None),
        (json.dumps("\\" * 301 + "[" * 301), None),
        (json.dumps(["\\", "[" * 301, '"']), None),
        ("[" + "1," * MAX_VALUES + "1]", "values"),
        ("[" + "{}," * MAX_VALUES + "1]", "values"),
    ],
)
def test_depth_and_values_are_counted_outside_of_strings(text: str, error: str | None) -> None:
    found = bounds_error(text)
    assert (found is None) == (error is None), found
    assert error is None or error in str(found)


def test_bounds_hold_for_utf_16_as_well() -> None:
    content = ("[" * 300 + "]" * 300).encode("utf-16")
    assert "200 levels" in str(refusal(content, GenerateBody))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"metadata": {"a": "b", "\\ud800": "b"}', "metadata.\\ud800"),
        (b'"metadata": {"a": "\\uDFFF"}', "metadata.a"),
        (b'"metadata": {"a": "\xed\xa0\x80"}', "metadata.a"),
        (
            b'"tools": [{"type": "function", "name": "f", "parameters": {"x": [1, "\\ud83d"]}}]',
            "tools.0.parameters.x.1",
        ),
    ],
)
def test_a_lone_surrogate_is_refused_in_every_field(fields: bytes, param: str) -> None:
    found = refusal(b'{"input": "hi", %s}' % fields, ResponsesBody)
    assert found is not None
    assert (found.param, found.code) == (param, "invalid_value")
    assert found.message == f"'{param}' must be valid Unicode, without lone surrogates"


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400", "1" + "0" * 320 + ".5"])
def test_a_number_that_json_cannot_carry_is_refused_in_every_field(number: str) -> None:
    for field, param in (
        ('"metadata": {"a": %s}', "metadata.a"),
        ('"tools": [{"type": "function", "name": "f", "parameters": {"x": [1, %s]}}]',
         "tools.0.parameters.x.1"),
    ):  # fmt: skip
        found = refusal(f'{{"input": "hi", {field % number}}}'.encode(), ResponsesBody)
        assert found is not None
        assert found.message == f"'{param}' must be a finite number"


def test_large_numbers_and_their_names_in_texts_are_accepted() -> None:
    text = f'{{"input": "NaN 1e999", "metadata": {{"a": 1e300, "b": {"9" * 400}}}}}'
    body = read_body(text.encode(), ResponsesBody)
    assert body.metadata == {"a": 1e300, "b": int("9" * 400)}


def test_a_pair_of_surrogates_is_one_character() -> None:
    body = read_body(
        b'{"input": "\\ud83d\\ude00", "metadata": {"a": "\\uD83D\\uDE00"}}', ResponsesBody
    )
    assert (body.input, body.metadata) == ("😀", {"a": "😀"})


@pytest.mark.parametrize("brackets", ["[" * 5000 + "]" * 5000, "[" + "1," * 200_000 + "1]"])
def test_json_inside_a_text_is_bounded(brackets: str) -> None:
    call = {"function": {"name": "f", "arguments": f'{{"a": {brackets}}}'}}
    chat = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
    found = refusal(json.dumps(chat).encode(), ChatBody)
    assert found is not None
    assert found.param == "messages.0.tool_calls.0.function.arguments"
    assert "must have at most" in found.message
    schema = {"prompt": "a", "json_schema": f'{{"enum": {brackets}}}'}
    found = refusal(json.dumps(schema).encode(), CompletionBody)
    assert found is not None
    assert found.param == "json_schema"
    assert "must have at most" in found.message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a" * 100, '"' + "a" * 59 + "..."),
        ([1] * 10**6, "[" + "1, " * 19 + "1," + "..."),
        ({"a": [True, None, 1.5, "x"]}, '{"a": [true, null, 1.5, "x"]}'),
        ({str(i): {} for i in range(1000)}, None),
        ([[], {}, [[]]], "[[], {}, [[]]]"),
        (b"\xff" + b"a" * 10**6, None),
    ],
)  # fmt: skip
def test_a_value_is_cut_before_it_is_formatted(value: Any, text: str | None) -> None:
    found = quote(value)
    assert len(found) <= 63
    assert text is None or found == text
    assert peak_mb(lambda: quote(value)) < 0.1
