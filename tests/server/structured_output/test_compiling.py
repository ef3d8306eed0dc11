"""Grammars compiled: tried in a process of their own, refused with their place, kept."""

import asyncio
import json
import time
from typing import Any

import pytest

from engine import EngineBusy
from server.errors.api_errors import ApiError
from server.structured_output import compiling
from server.structured_output.compiling import Grammar, GrammarCompiler
from server.structured_output.framing import Frame
from server.structured_output.grammar_spec import MAX_CHARS, GrammarKind, GrammarSpec
from tests.support.server.byte_text import EOS, NUM_IDS, byte_codec
from tests.support.server.grammar_cases import BOUNDED


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(text=byte_codec(), vocab_size=NUM_IDS, eos_ids=[EOS], timeout_s=10.0)


def compiled(compiler: GrammarCompiler, kind: GrammarKind, text: str) -> Grammar:
    return asyncio.run(compiler.compile(Frame(GrammarSpec("field", kind, text))))


def refusal(compiler: GrammarCompiler, kind: GrammarKind, text: str) -> str:
    with pytest.raises(ApiError) as info:
        compiled(compiler, kind, text)
    failure = info.value.failure
    assert (failure.status, failure.param, failure.code) == (400, "field", "invalid_grammar")
    assert failure.message.startswith("'field' cannot be served")
    return failure.message


def schema_with(part: Any) -> str:
    return json.dumps(
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/x"}}, "b/c": part},
            "$defs": {"x": {"type": "integer"}},
        }
    )


@pytest.mark.parametrize("name", list(BOUNDED))
def test_every_bounded_schema_compiles(compiler: GrammarCompiler, name: str) -> None:
    assert compiled(compiler, "json_schema", json.dumps(BOUNDED[name]))


@pytest.mark.parametrize(
    ("part", "place", "words"),
    [
        ({"type": "strin"}, "/properties/b~1c", "strin"),
        ({"anyOf": [{"type": "null"}, {"not": {}}]}, "/properties/b~1c/anyOf/1", "not"),
        ({"items": {"type": "string", "pattern": "(?=x)"}}, "/properties/b~1c/items", "look"),
        ({"type": "string", "format": "phone"}, "/properties/b~1c", "phone"),
        ({"type": "array", "uniqueItems": True}, "/properties/b~1c", "uniqueItems"),
        ({"allOf": [{"type": "integer"}, {"properties": 3}]}, "/properties/b~1c/allOf/1", "object"),
        ({"$ref": "http://elsewhere/x"}, "/properties/b~1c", "elsewhere"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "/properties/b~1c", "oneOf"),
    ],
)
def test_a_schema_is_refused_with_the_place_inside_it(
    compiler: GrammarCompiler, part: Any, place: str, words: str
) -> None:
    message = refusal(compiler, "json_schema", schema_with(part))
    assert f"at {place}:" in message
    assert words in message


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", "false", "no value"),
        ("json_schema", '{"type":"integer","minimum":5,"maximum":1}', "greater than"),
        ("json_schema", '{"enum":[]}', "empty"),
        ("regex", "a(b", "unclosed group"),
        ("regex", "(a)\\1", "backreferences"),
        ("regex", "", "empty"),
        ("regex", "[^\\s\\S]", ""),
        ("ebnf", "root ::= foo", "foo"),
        ("ebnf", '%llguidance {}\nx: "a"', "start"),
        ("ebnf", "start: (", "Expected"),
        ("ebnf", "start: start", ""),
        ("ebnf", "root := 3", "::="),
    ],
)
def test_a_grammar_that_is_none_is_refused(
    compiler: GrammarCompiler, kind: GrammarKind, text: str, words: str
) -> None:
    assert words in refusal(compiler, kind, text)


def test_a_grammar_is_compiled_once_and_forgotten_behind_thirty_two_others(
    compiler: GrammarCompiler,
) -> None:
    first = compiled(compiler, "regex", "once")
    assert compiled(compiler, "regex", "once").matcher is first.matcher
    for i in range(32):
        compiled(compiler, "regex", f"other{i}")
    assert compiled(compiler, "regex", "once").matcher is not first.matcher


def test_texts_and_choices_have_limits() -> None:
    for make in (
        lambda: GrammarSpec.written("f", "regex", "a" * (MAX_CHARS + 1)),
        lambda: GrammarSpec.schema("f", {"enum": ["a" * MAX_CHARS]}),
        lambda: GrammarSpec.schema("f", {"const": float("nan")}),
        lambda: GrammarSpec.schema("f", {"const": "\ud800"}),
        lambda: GrammarSpec.choice("f", []),
        lambda: GrammarSpec.choice("f", ["a", ""]),
        lambda: GrammarSpec.choice("f", [str(i) for i in range(1025)]),
    ):
        with pytest.raises(ValueError, match="must"):
            make()


def _nested(count: int) -> str:
    return '{"properties":{"a":' * count + "{}" + "}}" * count


HOSTILE: dict[str, tuple[GrammarKind, str]] = {
    "intersections of patterns": (
        "json_schema",
        json.dumps({"allOf": [{"pattern": f"a{{{i}}}b|.*c.{{{i}}}"} for i in range(20)]}),
    ),
    "a large multiple": ("json_schema", '{"type":"integer","multipleOf":9999991,"minimum":0}'),
    "a deep schema": ("json_schema", _nested(3000)),
    "a deep regex": ("regex", "(" * 5000 + "a" + ")" * 5000),
    "a deep grammar": ("ebnf", "start: " + "(" * 20000 + '"a"' + ")" * 20000),
    "a deep grammar of the other kind": ("ebnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_grammar_is_refused_in_time_while_others_are_compiled(name: str) -> None:
    kind, text = HOSTILE[name]
    hurried = GrammarCompiler(text=byte_codec(), vocab_size=NUM_IDS, eos_ids=[EOS], timeout_s=1.0)

    async def both() -> tuple[float, float]:
        await hurried.compile(Frame(GrammarSpec("f", "regex", "the process is there")))
        started = time.monotonic()
        hostile = asyncio.create_task(hurried.compile(Frame(GrammarSpec("f", kind, text))))
        await hurried.compile(Frame(GrammarSpec("f", "regex", "friendly")))
        between = time.monotonic() - started
        with pytest.raises(ApiError):
            await hostile
        return between, time.monotonic() - started

    friendly_s, hostile_s = asyncio.run(both())
    assert hostile_s < 30
    assert friendly_s < 30
    assert asyncio.run(hurried.compile(Frame(GrammarSpec("f", "regex", "still there"))))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"x-guidance": {"lenient": true}, "type": "integer", "not": {}}'),
        ("ebnf", 'start: %json {"x-guidance": {"lenient": true}, "type": "integer", "not": {}}'),
    ],
)
def test_the_librarys_own_options_are_not_a_clients(
    compiler: GrammarCompiler, kind: GrammarKind, text: str
) -> None:
    assert "x-guidance is not accepted" in refusal(compiler, kind, text)


def test_a_number_of_keys_that_one_key_said_twice_would_reach_is_refused(
    compiler: GrammarCompiler,
) -> None:
    counted = {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2}
    assert "minProperties" in refusal(compiler, "json_schema", json.dumps(counted))
    assert "at /properties/a" in refusal(
        compiler, "json_schema", json.dumps({"type": "object", "properties": {"a": counted}})
    )
    named = {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    assert compiled(compiler, "json_schema", json.dumps({**counted, **named}))
    assert compiled(compiler, "json_schema", json.dumps({"const": {"minProperties": 9}}))


def test_a_grammar_that_knows_no_way_back_is_refused_before_it_begins(
    compiler: GrammarCompiler,
) -> None:
    """A draft goes ahead along the grammar, and what is rejected is taken back."""
    why = refusal(compiler, "ebnf", 'start: a "z"\na[stop="e", capture]: /.*/')
    assert "rollback not supported" in why


def test_where_many_grammars_wait_one_more_is_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "_MOST_WAITING", 3)
    crowded = GrammarCompiler(text=byte_codec(), vocab_size=NUM_IDS, eos_ids=[EOS], timeout_s=10.0)

    async def crowd() -> list[Grammar | BaseException]:
        frames = [Frame(GrammarSpec("f", "regex", f"a{{{i}}}")) for i in range(1, 6)]
        tasks = (crowded.compile(frame) for frame in frames)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(crowd())
    assert [type(one) for one in found] == [Grammar] * 3 + [EngineBusy] * 2
    assert asyncio.run(crowd())  # and nothing is left waiting


def test_a_refusal_along_the_way_names_the_field_of_whoever_asked(
    compiler: GrammarCompiler,
) -> None:
    first = asyncio.run(compiler.compile(Frame(GrammarSpec("regex", "regex", "ab*"))))
    second = asyncio.run(compiler.compile(Frame(GrammarSpec("guided_regex", "regex", "ab*"))))
    assert (first.field, second.field) == ("regex", "guided_regex")
    assert second.matcher is first.matcher
