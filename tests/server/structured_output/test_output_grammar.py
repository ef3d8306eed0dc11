"""OutputGrammar: reasoning, tool calls and content in one grammar."""

import json
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from server.parsers.message_parts import ToolCall, parse_complete
from server.parsers.tool_calls import tool_parser
from server.structured_output.grammar_mask import GrammarMask
from server.structured_output.grammar_spec import GrammarSpec
from server.structured_output.llguidance_grammar import LIMITS, grammar_list, grammar_part
from server.structured_output.output_grammar import (
    CallFormat,
    OutputGrammar,
    ReasoningGrammar,
    Tag,
    ToolCallGrammar,
)
from server.structured_output.vocabulary import grammar_tokenizer

EOS, SPECIAL = 256, 257
TOKENS: list[bytes | None] = [*(bytes([i]) for i in range(256)), None, None]
TOKENIZER = grammar_tokenizer(TOKENS, [EOS], lambda text: list(text.encode()))
OPEN, CLOSE = Tag("<think>"), Tag("</think>")
DAYS = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]}
DAYS["additionalProperties"] = False


def reach(grammar: OutputGrammar, text: str | list[int | str]) -> tuple[int, bool]:
    """Return how many tokens of the text the grammar allows, and whether it may end there."""
    parts = {name: grammar_part(a.kind, a.text) for name, a in grammar.specs.items()}
    lark = grammar.lark()
    combined = grammar_list(parts if lark is None else {"output": {"lark_grammar": lark}, **parts})
    template = LLMatcher(TOKENIZER, combined, log_level=0, limits=LIMITS)
    assert not template.is_error(), (template.get_error(), lark)
    mask = GrammarMask(
        template=template,
        new_matcher=template.deep_copy,
        tokenizer=TOKENIZER,
        eos_ids=[EOS],
        ignore_eos=False,
    )
    pieces = [text] if isinstance(text, str) else text
    ids = [i for p in pieces for i in ([p] if isinstance(p, int) else p.encode())]
    for count, token_id in enumerate(ids):
        if token_id not in _allowed(mask):
            return count, False
        if mask.commit(token_id):
            return count + 1, mask.error is None
    return len(ids), EOS in _allowed(mask)


def _allowed(mask: GrammarMask) -> set[int]:
    words = np.zeros(9, dtype=np.uint32)
    mask.fill([], words)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def follows(grammar: OutputGrammar, text: str) -> bool:
    return reach(grammar, text) == (len(text.encode()), True)


CONTENT = GrammarSpec("f", "choice", '["yes","no"]')


def test_reasoning_comes_before_content_where_the_prompt_has_opened_it() -> None:
    grammar = OutputGrammar(
        CONTENT, reasoning=ReasoningGrammar(open=OPEN, close=CLOSE, is_open=True)
    )
    assert follows(grammar, "well <i think></think>\n\nyes")
    assert follows(grammar, "</think>no")
    assert not follows(grammar, "yes")
    assert not follows(grammar, "well</think>maybe")


def test_reasoning_is_optional_where_the_prompt_has_not_opened_it() -> None:
    grammar = OutputGrammar(
        CONTENT, reasoning=ReasoningGrammar(open=OPEN, close=CLOSE, is_open=False)
    )
    assert follows(grammar, "yes")
    assert follows(grammar, "<think>well</think>yes")
    assert not follows(grammar, "<think>yes")


def test_a_tag_that_is_a_special_token_matches_only_that_token() -> None:
    grammar = OutputGrammar(
        CONTENT, reasoning=ReasoningGrammar(open=OPEN, close=Tag("</think>", SPECIAL), is_open=True)
    )
    assert reach(grammar, ["well", SPECIAL, "yes"]) == (8, True)
    assert reach(grammar, "well</think>yes")[1] is False


TAGS: dict[CallFormat, tuple[Tag | None, Tag | None]] = {
    "hermes": (Tag("<tool_call>"), Tag("</tool_call>")),
    "mistral": (Tag("[TOOL_CALLS]"), None),
    "llama3_json": (None, None),
}


def calls_of(form: CallFormat, **changes: Any) -> ToolCallGrammar:
    begin, end = TAGS[form]
    fields: dict[str, Any] = {"is_required": True, "is_single": False, **changes}
    arguments = (
        ("plan", GrammarSpec("f", "json_schema", json.dumps(DAYS))),
        ("clock", GrammarSpec("f", "json_schema", '{"type":"object","maxProperties":0}')),
    )
    return ToolCallGrammar(format=form, begin=begin, end=end, arguments=arguments, **fields)


def written(form: CallFormat, *days: int) -> str:
    """Return calls of `plan` in a format."""
    key = "parameters" if form == "llama3_json" else "arguments"
    calls = [f'{{"name": "plan", "{key}": {{"days": {n}}}}}' for n in days]
    match form:
        case "hermes":
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        case "mistral":
            return f"[TOOL_CALLS][{', '.join(calls)}]"
        case "llama3_json":
            return "; ".join(calls)


FORMATS = list(TAGS)


@pytest.mark.parametrize("form", FORMATS)
def test_required_calls_are_parsed_by_the_parser_of_their_format(form: CallFormat) -> None:
    grammar = OutputGrammar(tool_calls=calls_of(form))
    for days in ((1,), (2, 1)):
        text = written(form, *days)
        assert follows(grammar, text), (text, reach(grammar, text))
        parts = parse_complete(tool_parser(form, frozenset({"plan", "clock"})), text)
        assert parts == [ToolCall("plan", json.dumps({"days": n})) for n in days]
    assert not follows(grammar, "hello")
    assert not follows(grammar, written(form, 3))


@pytest.mark.parametrize("form", FORMATS)
def test_is_single_allows_one_call(form: CallFormat) -> None:
    grammar = OutputGrammar(tool_calls=calls_of(form, is_single=True))
    assert follows(grammar, written(form, 1))
    assert not follows(grammar, written(form, 1, 2))


@pytest.mark.parametrize("form", ["hermes", "mistral"])
def test_text_may_surround_optional_calls_that_follow_their_schemas(form: CallFormat) -> None:
    grammar = OutputGrammar(tool_calls=calls_of(form, is_required=False))
    assert follows(grammar, "just text")
    assert follows(grammar, "first " + written(form, 1, 2))
    assert follows(grammar, written(form, 2) + " and then")
    assert not follows(grammar, written(form, 7))
    single = OutputGrammar(tool_calls=calls_of(form, is_required=False, is_single=True))
    assert follows(single, "first " + written(form, 1) + " then")
    assert not follows(single, written(form, 1) + written(form, 2))


@pytest.mark.parametrize("form", FORMATS)
def test_the_content_grammar_applies_where_no_tool_is_called(form: CallFormat) -> None:
    grammar = OutputGrammar(CONTENT, tool_calls=calls_of(form, is_required=False))
    assert follows(grammar, "no")
    assert follows(grammar, written(form, 1))
    assert not follows(grammar, "perhaps")


def test_reasoning_comes_before_required_calls() -> None:
    reasoning = ReasoningGrammar(open=OPEN, close=CLOSE, is_open=True)
    grammar = OutputGrammar(tool_calls=calls_of("hermes"), reasoning=reasoning)
    assert follows(grammar, "well</think>\n" + written("hermes", 1))
    assert not follows(grammar, written("hermes", 1))
