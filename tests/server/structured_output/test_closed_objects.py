"""Objects that name properties are closed, unless the schema says otherwise."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from server.structured_output.closed_objects import close_objects
from server.structured_output.llguidance_grammar import grammar_list, grammar_part
from server.structured_output.sandbox_worker import _ByteVocabulary

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}}
TOKENIZER = LLTokenizer(TokenizerWrapper(_ByteVocabulary()), slices=[])


def _accepts(schema: Any, value: Any, *, opens_objects: bool = False) -> bool:
    part = grammar_part("json_schema", json.dumps(schema), opens_objects=opens_objects)
    matcher = LLMatcher(TOKENIZER, grammar_list({"content": part}), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    text = json.dumps(value).encode()
    return bool(matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        (A, [{}, {"a": 1}], [{"a": 1, "x": 1}, {"x": 1}]),
        ({"type": "object", "properties": {}}, [{}], [{"x": 1}]),
        ({"allOf": [A, B]}, [{"a": 1, "b": 2}], [{"a": 1, "x": 1}]),
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, [{"a": 1}], [{"x": 1}]),
        (
            {"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A}},
            [{"a": 1, "b": 2}],
            [{"a": 1, "x": 1}],
        ),
        ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}], [{"x": 1}, {"a": 1, "b": 1}]),
        (
            {"type": "object", "properties": {"n": A}, "required": ["n"]},
            [{"n": {"a": 1}}],
            [{"n": {"x": 1}}],
        ),
        ({"type": "array", "items": A}, [[{"a": 1}]], [[{"x": 1}]]),
        (
            {
                "type": "object",
                "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}},
                "$defs": {
                    "n": {
                        "type": "object",
                        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}},
                    }
                },
            },
            [{"v": 1, "next": {"v": 2, "next": {"v": 3}}}],
            [{"v": 1, "next": {"x": 2}}],
        ),
    ],
)
def test_only_named_properties_are_accepted(
    schema: Any, accepted: list[Any], refused: list[Any]
) -> None:
    assert [value for value in accepted if not _accepts(schema, value)] == []
    assert [value for value in refused if _accepts(schema, value)] == []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object"}, {"x": 1}),
        (True, {"x": 1}),
        ({**A, "additionalProperties": True}, {"x": 1}),
        ({**A, "additionalProperties": {"type": "integer"}}, {"x": 1}),
        ({**A, "patternProperties": {"^x": {"type": "integer"}}}, {"a": 1, "x": 1}),
        ({**A, "required": ["x"]}, {"x": 1}),
        ({"allOf": [{**A, "additionalProperties": True}, B]}, {"a": 1, "b": 2, "x": 1}),
    ],
)
def test_an_object_stays_open_where_the_schema_says_or_needs_it(schema: Any, value: Any) -> None:
    assert _accepts(schema, value)


def test_values_that_look_like_schemas_are_left_alone() -> None:
    schema = {"const": {"properties": {"a": 1}}}
    assert close_objects(schema) == schema


@pytest.mark.parametrize("opens_objects", [False, True])
def test_an_option_opens_objects_that_do_not_set_additional_properties(opens_objects: bool) -> None:
    closed = {**A, "additionalProperties": False}
    assert _accepts(A, {"a": 1, "x": 1}, opens_objects=opens_objects) is opens_objects
    assert not _accepts(closed, {"a": 1, "x": 1}, opens_objects=opens_objects)
