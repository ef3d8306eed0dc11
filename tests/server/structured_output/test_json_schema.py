"""Rewritten schemas: their numbers, formats and endless parts are enforced exactly or refused."""

import datetime
import json
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from server.structured_output.json_schema import GrammarError, exact_schema
from server.structured_output.llguidance_grammar import LIMITS, grammar_list, grammar_part
from server.structured_output.sandbox_worker import _ByteVocabulary

TOKENIZER = LLTokenizer(TokenizerWrapper(_ByteVocabulary()), slices=[])
END = _ByteVocabulary.eos_token_id


def compiled(schema: Any) -> LLMatcher:
    grammar = grammar_list({"content": grammar_part("json_schema", json.dumps(schema))})
    return LLMatcher(TOKENIZER, grammar, log_level=0, limits=LIMITS)


def matcher(schema: Any) -> LLMatcher:
    matcher = compiled(schema)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(schema: Any, text: str) -> bool:
    follower, tokens = matcher(schema), list(text.encode())
    return follower.try_consume_tokens(tokens) == len(tokens) and follower.is_accepting()


def generated(schema: Any, choose: Callable[[list[int]], int]) -> str:
    """Return a text of the grammar; choose selects each byte, or the end."""
    follower, text = matcher(schema), b""
    while not follower.is_stopped():
        bits = np.frombuffer(follower.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")[: END + 1]).tolist()
        token = choose(allowed)
        if token == END:
            break
        follower.consume_token(token)
        text += bytes([token])
    return text.decode()


def refusal(schema: Any) -> GrammarError:
    with pytest.raises(GrammarError) as info:
        exact_schema(schema)
    return info.value


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"const": 9007199254740993}, "/const"),
        ({"enum": [1, 1234567890123456789]}, "/enum/1"),
        ({"const": 2**64}, "/const"),
        ({"properties": {"a/b": {"enum": [{"c": [-(2**53) - 1]}]}}}, "/properties/a~1b/enum/0/c/0"),
        ({"type": "integer", "minimum": 9007199254740993}, "/minimum"),
        ({"items": {"type": "integer", "exclusiveMaximum": 2**53}}, "/items/exclusiveMaximum"),
        ({"anyOf": [{"multipleOf": 9007199254740993}]}, "/anyOf/0/multipleOf"),
        ({"type": "number", "multipleOf": 0.07}, "/multipleOf"),
        ({"const": 92905.26915595331}, "/const"),
    ],
)
def test_a_number_that_the_library_would_change_is_refused_with_its_place(
    schema: Any, at: str
) -> None:
    error = refusal(schema)
    assert error.at == at
    assert "cannot be enforced exactly" in str(error)


@settings(deadline=None, max_examples=300)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1))
def test_a_number_of_a_constant_is_generated_exactly_or_refused(value: float) -> None:
    schema = {"const": value}
    try:
        exact_schema(schema)
    except GrammarError:
        assert len(repr(value)) > 15
        return
    text = generated(schema, choose=lambda allowed: allowed[0])
    assert type(value)(text) == value


NUMBERS = (
    st.integers(-(2**54), 2**54)
    | st.integers(-(2**65), 2**65)
    | st.floats(-1e9, 1e9)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner)
)


@settings(deadline=None, max_examples=200)
@given(VALUES)
def test_numbers_anywhere_in_a_value_are_generated_exactly_or_refused_with_their_place(
    value: Any,
) -> None:
    schema: Any = {"enum": [value]}
    at = refused_at(schema)
    if at is not None:
        for part in at.split("/")[1:]:
            schema = schema[int(part) if isinstance(schema, list) else part]
        assert isinstance(schema, int | float)
        return
    assert decimals(generated(schema, lambda allowed: allowed[0])) == decimals(json.dumps(value))


def refused_at(schema: Any) -> str | None:
    """Return the place of the number for which a schema is refused."""
    try:
        exact_schema(schema)
    except GrammarError as error:
        return error.at
    return None


def decimals(text: str) -> Any:
    """Return JSON with its numbers as they are written."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


@settings(deadline=None, max_examples=300)
@example(-0.0, "minimum")
@given(NUMBERS, st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]))
def test_a_bound_is_never_passed_by_its_last_digit(bound: float, key: str) -> None:
    schema = {"type": "integer" if isinstance(bound, int) else "number", key: bound}
    at = refused_at(schema)
    if at is not None or compiled(schema).is_error():
        assert at in (None, f"/{key}")
        assert len(repr(bound)) > 15 or abs(math.frexp(bound)[1]) > 64
        return
    near = [bound - 1, bound + 1] if isinstance(bound, int) else neighbours(bound)
    for value in (near[0], bound, near[1]):
        found = [text for text in spellings(value) if accepts(schema, text)]
        assert is_within(value, bound, key) or not found, (value, found)
        is_needed = value == bound and not key.startswith("exclusive") and abs(bound) < 2**63
        assert found or not is_needed, value


def neighbours(value: float) -> list[float]:
    return [math.nextafter(value, -math.inf), math.nextafter(value, math.inf)]


def is_within(value: float, bound: float, key: str) -> bool:
    if key.startswith("exclusive") and value == bound:
        return False
    return value >= bound if key.endswith("inimum") else value <= bound


def spellings(value: float) -> list[str]:
    """Return a number as a bounded grammar writes it: no exponent, and minus zero as zero."""
    text = format(Decimal(repr(value + 0)), "f")
    return [text, text.partition(".")[0]] if value == int(value) else [text]


@pytest.mark.parametrize("value", [0.1, 1e22, -12.5, 123456789.25, 2**53, -1, 0])
def test_usual_numbers_are_served(value: float) -> None:
    assert float(generated({"enum": [value]}, choose=lambda allowed: allowed[0])) == value


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": -(2**63), "maximum": 2**63 - 1},
        {"minimum": 0, "maximum": 2**64 - 1},
        {"minimum": -(2**53) + 1, "maximum": 2**53 - 1},
    ],
)
def test_the_bounds_of_machine_integers_are_served(bounds: dict[str, int]) -> None:
    schema = {"type": "integer", **bounds}
    assert accepts(schema, str(2**53 - 1))
    assert not accepts(schema, str(bounds["maximum"] + 1))
    assert not accepts(schema, str(bounds["minimum"] - 1))


def test_multiples_beyond_32_bits_together_are_refused() -> None:
    parts = [{"multipleOf": 65537}, {"multipleOf": 65539}]
    assert "multipleOf" in str(refusal({"type": "integer", "allOf": parts}))
    assert accepts({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, "12")


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29"]),
        ("time", ["23:59:59Z", "00:00:00.5+01:00"], ["23:59:60Z", "12:00:60+01:00", "24:00:00Z"]),
        ("date-time", ["2024-02-29T00:00:00Z"], ["2023-02-29T00:00:00Z", "2024-01-01T00:00:60Z"]),
        ("hostname", ["a.example", "a-b.c"], ["-a", "a-", "a" * 64, ".".join(["a" * 60] * 5)]),
        ("email", ["a.b@c.example"], ["a..b@c", ".a@b", "a" * 65 + "@b", "a@" + "b" * 64]),
    ],
)
def test_only_valid_strings_of_a_format_are_allowed(
    name: str, valid: list[str], invalid: list[str]
) -> None:
    for schema in (
        {"type": "string", "format": name},
        {"type": ["string", "null"], "format": name, "pattern": "^", "maxLength": 400},
        {"allOf": [{"type": "string"}, {"format": name}]},
    ):
        assert [text for text in valid if not accepts(schema, f'"{text}"')] == []
        assert [text for text in invalid if accepts(schema, f'"{text}"')] == []


FORMATS = "date time date-time duration email hostname ipv4 ipv6 uuid uri"


@pytest.mark.parametrize("name", FORMATS.split())
def test_random_strings_of_every_format_are_valid(name: str) -> None:
    schema = {"type": "string", "format": name}
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    rng = random.Random(name)

    def choose(allowed: list[int]) -> int:
        return ord('"') if ord('"') in allowed and rng.random() < 0.2 else rng.choice(allowed)

    for _ in range(60):
        text = json.loads(generated(schema, choose))
        assert validator.is_valid(text), text
        if name in ("date", "time", "date-time"):
            kind = {"date": datetime.date, "time": datetime.time}.get(name, datetime.datetime)
            kind.fromisoformat(text)


def test_a_format_of_no_string_has_no_effect_and_an_unknown_one_is_refused() -> None:
    assert accepts({"type": "integer", "format": "date"}, "5")
    assert "unknown" in str(refusal({"type": "string", "format": "unknown"}))


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}, "{}"),
        ({"type": "array", "items": {"$ref": "#/$defs/n"}}, "[]"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}, "null"),
        ({"type": "object", "additionalProperties": {"$ref": "#/$defs/n"}}, "{}"),
        ({"type": "object", "properties": {"a": NODE}}, "{}"),
    ],
)
def test_an_endless_optional_part_is_never_begun(schema: Any, text: str) -> None:
    schema = {**schema, "$defs": {"n": NODE}}
    assert accepts(schema, text)
    open_object = {"{": '{"a": {', "[": "[{"}.get(text[0], "{")
    follower, tokens = matcher(schema), list(open_object.encode())
    assert follower.try_consume_tokens(tokens) < len(tokens)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/n", "$defs": {"n": NODE}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_schema_without_a_finite_value_is_refused(schema: Any) -> None:
    assert "ends" in str(refusal(schema))


def test_recursion_that_can_end_is_served() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    tree |= {"required": ["kids"], "additionalProperties": False}
    assert accepts(tree, '{"kids": [{"kids": []}]}')


def test_library_options_are_refused_as_a_keyword_only() -> None:
    assert refusal({"items": {"x-guidance": {}}}).at == "/items"
    assert accepts({"const": {"x-guidance": 1}}, '{"x-guidance": 1}')
    assert accepts({"properties": {"x-guidance": {"type": "null"}}}, '{"x-guidance": null}')
