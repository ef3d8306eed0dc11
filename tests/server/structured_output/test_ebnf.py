"""EBNF: escapes of GBNF, and schemas inside Lark."""

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from server.structured_output.llguidance_grammar import (
    LIMITS,
    GrammarError,
    grammar_list,
    grammar_part,
)
from server.structured_output.sandbox_worker import _ByteVocabulary

TOKENIZER = LLTokenizer(TokenizerWrapper(_ByteVocabulary()), slices=[])


def accepts(ebnf: str, text: str) -> bool:
    grammar = grammar_list({"content": grammar_part("ebnf", ebnf)})
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("spelled", "char"),
    [
        (r"\u0041", "A"),
        (r"\u00e9", "é"),
        (r"\U0001F600", "😀"),
        (r"\U00000041", "A"),
        (r"\x41", "A"),
        (r"\xe9", "é"),
        (r"\[", "["),
        (r"\]", "]"),
        (r"\n", "\n"),
        (r"\\", "\\"),
        (r"\"", '"'),
        (r"\u0001", "\x01"),
        (r"\u0000", "\x00"),
        ("/", "/"),
        ("&", "&"),
        ("\t", "\t"),
    ],
)
def test_an_escape_of_gbnf_is_its_character_in_literals_and_classes(
    spelled: str, char: str
) -> None:
    assert accepts(f'root ::= "{spelled}"', char)
    assert accepts(f'root ::= "x" [{spelled}]', f"x{char}")
    assert not accepts(f'root ::= "x" [^{spelled}]', f"x{char}")


def test_ranges_and_negations_of_gbnf_classes_hold() -> None:
    assert accepts(r"root ::= [\u0061-\x7a]+ [^0-9\]]", "abcz!")
    assert not accepts(r"root ::= [\u0061-\x7a]+ [^0-9\]]", "abc]")


@pytest.mark.parametrize("escape", [r"\ud800", r"\U00110000", r"\q"])
def test_an_escape_of_no_character_is_refused(escape: str) -> None:
    with pytest.raises(GrammarError):
        grammar_part("ebnf", f'root ::= "{escape}"')


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (r'{"x\u002dguidance": {"lenient": true}, "not": {}}', "x-guidance is not accepted"),
        ('{"items": {"const": 9007199254740993}}', "cannot be enforced exactly"),
        ('{"type": "object", "minProperties": 2}', "minProperties"),
        ("false", "no value"),
        ("[1]", "must be a JSON schema: an object, true or false"),
        ('{"a": ', "not followed by JSON"),
    ],
)
def test_a_schema_inside_lark_follows_the_rules_of_json_schema(schema: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        grammar_part("ebnf", f'start: "a" %json {schema}')


def test_a_schema_inside_lark_is_enforced() -> None:
    lark = (
        'start: "%json {" %json {"type": "string", "format": "date"} | B // %json 3\nB: /%json 3/'
    )
    assert accepts(lark, '%json {"2024-02-29"')
    assert not accepts(lark, '%json {"2023-02-29"')
    assert accepts(lark, "%json 3")
    assert not accepts('start: %json {"type": "array"}', "[1,   2]")
