"""GrammarCompiler: checks in a sandbox, refuses with a location, caches."""

import asyncio
import json
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from engine import EngineBusy
from server.errors.api_errors import ApiError
from server.structured_output import compiler as compiler_module
from server.structured_output.compiler import CompiledGrammar, GrammarCache, GrammarCompiler
from server.structured_output.grammar_spec import MAX_CHARS, GrammarKind, GrammarSpec
from server.structured_output.output_grammar import OutputGrammar
from tests.support.server.byte_text import EOS, NUM_IDS, byte_codec
from tests.support.server.grammar_cases import BOUNDED


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(text=byte_codec(), vocab_size=NUM_IDS, eos_ids=[EOS], timeout_s=10.0)


def compiled(compiler: GrammarCompiler, kind: GrammarKind, text: str) -> CompiledGrammar:
    return asyncio.run(compiler.compile(OutputGrammar(GrammarSpec("field", kind, text))))


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
    ("part", "location", "words"),
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
def test_an_invalid_schema_is_refused_with_the_location_inside_it(
    compiler: GrammarCompiler, part: Any, location: str, words: str
) -> None:
    message = refusal(compiler, "json_schema", schema_with(part))
    assert f"at {location}:" in message
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
def test_an_invalid_grammar_is_refused(
    compiler: GrammarCompiler, kind: GrammarKind, text: str, words: str
) -> None:
    assert words in refusal(compiler, kind, text)


def test_the_cache_keeps_the_32_latest_grammars(
    compiler: GrammarCompiler,
) -> None:
    first = compiled(compiler, "regex", "once")
    assert compiled(compiler, "regex", "once").matcher is first.matcher
    for i in range(32):
        compiled(compiler, "regex", f"other{i}")
    assert compiled(compiler, "regex", "once").matcher is not first.matcher


def test_invalid_texts_and_choices_are_refused() -> None:
    for make in (
        lambda: GrammarSpec.of_text("f", "regex", "a" * (MAX_CHARS + 1)),
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
def test_a_hostile_grammar_is_refused_in_time_and_does_not_block_others(name: str) -> None:
    kind, text = HOSTILE[name]
    compiler = GrammarCompiler(text=byte_codec(), vocab_size=NUM_IDS, eos_ids=[EOS], timeout_s=1.0)

    async def both() -> tuple[float, float]:
        await compiler.compile(OutputGrammar(GrammarSpec("f", "regex", "starts the sandbox")))
        started = time.monotonic()
        hostile = asyncio.create_task(compiler.compile(OutputGrammar(GrammarSpec("f", kind, text))))
        await compiler.compile(OutputGrammar(GrammarSpec("f", "regex", "friendly")))
        other_s = time.monotonic() - started
        with pytest.raises(ApiError):
            await hostile
        return other_s, time.monotonic() - started

    other_s, hostile_s = asyncio.run(both())
    assert hostile_s < 30
    assert other_s < 30
    assert asyncio.run(compiler.compile(OutputGrammar(GrammarSpec("f", "regex", "still there"))))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"x-guidance": {"lenient": true}, "type": "integer", "not": {}}'),
        ("ebnf", 'start: %json {"x-guidance": {"lenient": true}, "type": "integer", "not": {}}'),
    ],
)
def test_library_options_inside_a_grammar_are_refused(
    compiler: GrammarCompiler, kind: GrammarKind, text: str
) -> None:
    assert "x-guidance is not accepted" in refusal(compiler, kind, text)


def test_min_properties_above_the_required_ones_is_refused(
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


def test_a_grammar_without_rollback_is_refused(
    compiler: GrammarCompiler,
) -> None:
    """A mask advances along drafts and rolls back rejected tokens."""
    message = refusal(compiler, "ebnf", 'start: a "z"\na[stop="e", capture]: /.*/')
    assert "rollback not supported" in message


def test_too_many_pending_compilations_raise_engine_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler_module, "_MAX_PENDING", 3)
    compiler = GrammarCompiler(text=byte_codec(), vocab_size=NUM_IDS, eos_ids=[EOS], timeout_s=10.0)

    async def compile_five() -> list[CompiledGrammar | BaseException]:
        grammars = [OutputGrammar(GrammarSpec("f", "regex", f"a{{{i}}}")) for i in range(1, 6)]
        tasks = (compiler.compile(grammar) for grammar in grammars)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(compile_five())
    assert [type(result) for result in found] == [CompiledGrammar] * 3 + [EngineBusy] * 2
    assert asyncio.run(compile_five())  # the pending count is back at zero


def test_a_cached_grammar_names_the_field_of_the_current_request(
    compiler: GrammarCompiler,
) -> None:
    first = asyncio.run(compiler.compile(OutputGrammar(GrammarSpec("regex", "regex", "ab*"))))
    second = asyncio.run(
        compiler.compile(OutputGrammar(GrammarSpec("guided_regex", "regex", "ab*")))
    )
    assert (first.field, second.field) == ("regex", "guided_regex")
    assert second.matcher is first.matcher


def test_evicting_a_grammar_keeps_a_newer_one_under_the_same_key(
    compiler: GrammarCompiler,
) -> None:
    key, cache = OutputGrammar(GrammarSpec("f", "regex", "evicted")), GrammarCache()
    old = compiled(compiler, "regex", "evicted")
    new = replace(old, matcher=old.matcher.deep_copy())
    cache.put(key, old)
    cache.put(key, new)
    cache.evict(key, old.matcher)
    assert cache.get(key) is new
    cache.evict(key, new.matcher)
    assert cache.get(key) is None


def test_a_grammar_may_be_evicted_while_the_event_loop_uses_the_cache(
    compiler: GrammarCompiler,
) -> None:
    """Masks evict on the engine's thread; every interleaving with the event loop is safe."""
    key, cache = OutputGrammar(GrammarSpec("f", "regex", "raced")), GrammarCache(size=1)
    grammar = compiled(compiler, "regex", "raced")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    is_done = threading.Event()

    def evict() -> None:
        while not is_done.is_set():
            cache.evict(key, grammar.matcher)

    engine_thread = threading.Thread(target=evict)
    engine_thread.start()
    try:
        for _ in range(150_000):
            cache.put(key, grammar)
            assert cache.get(key) in (grammar, None)
    finally:
        is_done.set()
        engine_thread.join()
        sys.setswitchinterval(interval)
