"""What stands around a grammar: thoughts before it, calls of tools in the formats of models."""

import json
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from server.parsers.message_parts import ToolCall, read_whole
from server.parsers.tool_calls import tool_parser
from server.structured_output.framing import Around, CallFormat, Frame, Mark, ToolCalls
from server.structured_output.grammar_mask import GrammarMask
from server.structured_output.grammar_spec import GrammarSpec
from server.structured_output.limits import LIMITS
from server.structured_output.llguidance_grammar import joined, written_part
from server.structured_output.vocabulary import grammar_tokenizer

EOS, SPECIAL = 256, 257
TOKENS: list[bytes | None] = [*(bytes([i]) for i in range(256)), None, None]
TOKENIZER = grammar_tokenizer(TOKENS, [EOS], lambda text: list(text.encode()))
THINK, UNTHINK = Mark("<think>"), Mark("</think>")
DAYS = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]}
DAYS["additionalProperties"] = False


def reach(frame: Frame, text: str | list[int | str]) -> tuple[int, bool]:
    """How many bytes of the text the grammar follows, and whether it may end there."""
    parts = {name: written_part(a.kind, a.text) for name, a in frame.asked.items()}
    lark = frame.lark()
    whole = joined(parts if lark is None else {"whole": {"lark_grammar": lark}, **parts})
    template = LLMatcher(TOKENIZER, whole, log_level=0, limits=LIMITS)
    assert not template.is_error(), (template.get_error(), lark)
    mask = GrammarMask(
        template=template,
        afresh=template.deep_copy,
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


def follows(frame: Frame, text: str) -> bool:
    return reach(frame, text) == (len(text.encode()), True)


ANSWER = GrammarSpec("f", "choice", '["yes","no"]')


def test_thoughts_come_before_the_answer_where_the_prompt_has_begun_them() -> None:
    frame = Frame(ANSWER, around=Around(open=THINK, close=UNTHINK, is_open=True))
    assert follows(frame, "well <i think></think>\n\nyes")
    assert follows(frame, "</think>no")
    assert not follows(frame, "yes")
    assert not follows(frame, "well</think>maybe")


def test_thoughts_may_be_left_out_where_the_prompt_has_not_begun_them() -> None:
    frame = Frame(ANSWER, around=Around(open=THINK, close=UNTHINK, is_open=False))
    assert follows(frame, "yes")
    assert follows(frame, "<think>well</think>yes")
    assert not follows(frame, "<think>yes")


def test_a_mark_that_is_a_special_token_is_that_token_and_no_text() -> None:
    frame = Frame(ANSWER, around=Around(open=THINK, close=Mark("</think>", SPECIAL), is_open=True))
    assert reach(frame, ["well", SPECIAL, "yes"]) == (8, True)
    assert reach(frame, "well</think>yes")[1] is False


MARKS: dict[CallFormat, tuple[Mark | None, Mark | None]] = {
    "hermes": (Mark("<tool_call>"), Mark("</tool_call>")),
    "mistral": (Mark("[TOOL_CALLS]"), None),
    "llama3_json": (None, None),
}


def calls_of(form: CallFormat, **changes: Any) -> ToolCalls:
    begin, end = MARKS[form]
    fields: dict[str, Any] = {"is_required": True, "is_single": False, **changes}
    arguments = (
        ("plan", GrammarSpec("f", "json_schema", json.dumps(DAYS))),
        ("clock", GrammarSpec("f", "json_schema", '{"type":"object","maxProperties":0}')),
    )
    return ToolCalls(format=form, begin=begin, end=end, arguments=arguments, **fields)


def written(form: CallFormat, *days: int) -> str:
    """Calls of `plan` as the format has them."""
    key = "parameters" if form == "llama3_json" else "arguments"
    calls = [f'{{"name": "plan", "{key}": {{"days": {n}}}}}' for n in days]
    match form:
        case "hermes":
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        case "mistral":
            return f"[TOOL_CALLS][{', '.join(calls)}]"
        case "llama3_json":
            return "; ".join(calls)


FORMATS = list(MARKS)


@pytest.mark.parametrize("form", FORMATS)
def test_required_calls_are_read_by_the_formats_own_parser(form: CallFormat) -> None:
    frame = Frame(calls=calls_of(form))
    for days in ((1,), (2, 1)):
        text = written(form, *days)
        assert follows(frame, text), (text, reach(frame, text))
        parts = read_whole(tool_parser(form, frozenset({"plan", "clock"})), text)
        assert parts == [ToolCall("plan", json.dumps({"days": n})) for n in days]
    assert not follows(frame, "hello")
    assert not follows(frame, written(form, 3))


@pytest.mark.parametrize("form", FORMATS)
def test_a_single_call_is_one(form: CallFormat) -> None:
    frame = Frame(calls=calls_of(form, is_single=True))
    assert follows(frame, written(form, 1))
    assert not follows(frame, written(form, 1, 2))


@pytest.mark.parametrize("form", ["hermes", "mistral"])
def test_text_may_stand_beside_calls_that_keep_to_their_schemas(form: CallFormat) -> None:
    frame = Frame(calls=calls_of(form, is_required=False))
    assert follows(frame, "just text")
    assert follows(frame, "first " + written(form, 1, 2))
    assert follows(frame, written(form, 2) + " and then")
    assert not follows(frame, written(form, 7))
    single = Frame(calls=calls_of(form, is_required=False, is_single=True))
    assert follows(single, "first " + written(form, 1) + " then")
    assert not follows(single, written(form, 1) + written(form, 2))


@pytest.mark.parametrize("form", FORMATS)
def test_an_answers_grammar_holds_where_no_tool_is_called(form: CallFormat) -> None:
    frame = Frame(ANSWER, calls=calls_of(form, is_required=False))
    assert follows(frame, "no")
    assert follows(frame, written(form, 1))
    assert not follows(frame, "perhaps")


def test_thoughts_come_before_calls_too() -> None:
    around = Around(open=THINK, close=UNTHINK, is_open=True)
    frame = Frame(calls=calls_of("hermes"), around=around)
    assert follows(frame, "well</think>\n" + written("hermes", 1))
    assert not follows(frame, written("hermes", 1))
