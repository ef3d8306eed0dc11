"""Tool-call and reasoning parsers: valid and invalid calls, at any split of the text."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.parsers.message_parts import (
    Content,
    Part,
    PlainTextParser,
    Reasoning,
    ToolCall,
    merge_parts,
    parse_complete,
)
from server.parsers.reasoning import ReasoningParser
from server.parsers.tool_calls import ToolFormat, format_of_template, tool_parser
from server.parsers.tool_calls.json_text import value_end

NAMES = frozenset({"weather", "clock", "a.b"})
FORMATS = get_args(ToolFormat)


def read(form: ToolFormat, text: str) -> list[Part]:
    return parse_complete(tool_parser(form, NAMES), text)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


PARIS = call("weather", city="Paris")
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("form", "text", "parts"),
    [
        ("hermes", HERMES, [PARIS]),
        ("hermes", f"Let me see.\n{HERMES}\n", [Content("Let me see."), PARIS]),
        ("hermes", f"{HERMES}\n{HERMES}", [PARIS, PARIS]),
        ("hermes", f"{HERMES} and more", [PARIS, Content(" and more")]),
        ("hermes", HERMES.removesuffix("</tool_call>"), [PARIS]),  # the model just ended
        ("hermes", '<tool_call>{"name": "clock"}</tool_call>', [call("clock")]),
        ("hermes", "a < b <tool> c", [Content("a < b <tool> c")]),
        ("hermes", " two  blanks \n", [Content(" two  blanks \n")]),
        (
            "hermes",
            '<tool_call>{"name": "clock", "arguments": {"a": "\\\\\\"</tool_call>"}}</tool_call>!',
            [call("clock", a='\\"</tool_call>'), Content("!")],
        ),
        (
            "mistral",
            '[TOOL_CALLS]clock[ARGS]{"a": "[TOOL_CALLS]"}[TOOL_CALLS]clock{}',
            [call("clock", a="[TOOL_CALLS]"), call("clock")],
        ),
        ("llama3_json", '{"name": "weather", "parameters": {"city": "Paris"}}', [PARIS]),
        (
            "llama3_json",
            '<|python_tag|>{"type": "function", "name": "clock", "parameters": {}}',
            [call("clock")],
        ),
        (
            "llama3_json",
            '{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "clock"}',
            [PARIS, call("clock")],
        ),
        ("llama3_json", "It is sunny.", [Content("It is sunny.")]),
        ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}]', [PARIS]),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "clock", "arguments": {}}, '
            '{"name": "weather", "arguments": {"city": "Paris"}}]',
            [call("clock"), PARIS],
        ),
        ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}', [PARIS]),
        ("mistral", '[TOOL_CALLS]weather{"city": "Paris"}', [PARIS]),
        (
            "mistral",
            'Well.[TOOL_CALLS]clock[ARGS]{}[TOOL_CALLS]weather[ARGS]{"city": "Paris"}',
            [Content("Well."), call("clock"), PARIS],
        ),
        ("pythonic", '[weather(city="Paris")]', [PARIS]),
        ("pythonic", "[clock(), a.b(x=[1, (2.5, None)], y={'k': True})]", [
            call("clock"), call("a.b", x=[1, [2.5, None]], y={"k": True})]),
        ("pythonic", "[weather(city='Zürich')]", [call("weather", city="Zürich")]),
    ],
)  # fmt: skip
def test_calls_are_found(form: ToolFormat, text: str, parts: list[Part]) -> None:
    assert read(form, text) == parts


@pytest.mark.parametrize(
    "arguments",
    [
        '{"x": 9e999}',
        '{"x": -1E+400}',
        '{"x": 1.50}',
        '{"x": ' + "9" * 5000 + "}",
        '{"x": ' + "[" * 3000 + "]" * 3000 + "}",
        '{"x": "\\ud83d\\ude00\\u00e9", "x": {"": []}}',
        "{ }",
    ],
)
@pytest.mark.parametrize(
    ("form", "begin", "end"),
    [
        ("hermes", '<tool_call>{"name": "clock", "arguments": ', "}</tool_call>"),
        ("llama3_json", '{"name": "clock", "parameters": ', "}"),
        ("mistral", '[TOOL_CALLS][{"name": "clock", "arguments": ', "}]"),
        ("mistral", "[TOOL_CALLS]clock[ARGS]", ""),
    ],
)
def test_every_json_text_is_an_argument_to_the_letter(
    form: ToolFormat, begin: str, end: str, arguments: str
) -> None:
    assert read(form, begin + arguments + end) == [ToolCall("clock", arguments)]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES, st.sampled_from([None, 1]), st.text('{}[],:"x1 ', max_size=3), st.integers(0))
def test_the_scanner_accepts_what_json_does(
    value: Any, indent: int | None, noise: str, at: int
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    cut = at % (len(text) + 1)
    for candidate in (text, text[:cut] + noise + text[cut:], text[:cut]):
        try:
            _, expected = STRICT.raw_decode(candidate)
        except ValueError:
            expected = None
        try:
            found = value_end(candidate)
        except ValueError:
            found = None
        assert found == expected or candidate[:1].isspace(), candidate


def _no_constant(name: str) -> None:
    raise ValueError(name)


STRICT = json.JSONDecoder(parse_constant=_no_constant)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": </tool_call>'),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "clock", "arguments": {}, "more": 1}</tool_call>'),
        ("hermes", '<tool_call>{"name": "clock", "arguments": {"x": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "clock", "arguments": {"x": "\\ud800"}}</tool_call>'),
        ("hermes", "<tool_call></tool_call>"),
        ("hermes", "<tool_call>" + "[" * 100_000),
        ("hermes", '<tool_call>{"name": "clock", "arguments": {"x": 01}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "clock", "arguments": {"x" 1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "clock", "arguments": {"x": 1,}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "clock", "arguments": {"x": [1 2]}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "clock", "arguments": {"x": "\t"}}</tool_call>'),
        ("hermes", "<tool_ca"),
        ("llama3_json", '{"name": "weather", "parameters": {"city": "Pa'),
        ("llama3_json", '{"name": "clock"} and then {"name": "clock"}'),
        ("llama3_json", '{"answer": 42}'),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("llama3_json", "<|python"),
        ("mistral", '[TOOL_CALLS][{"name": "clock"}, {"name": "unknown"}]'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", "[TOOL_CALLS]clock[ARGS]{} done"),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[clock(1)]"),
        ("pythonic", "[clock(x=y)]"),
        ("pythonic", "[clock(x=1, x=2)]"),
        ("pythonic", "[clock(**{})]"),
        ("pythonic", "[clock(x={1})]"),
        ("pythonic", "[clock(x=b'')]"),
        ("pythonic", "[__import__('os').system('x')]"),
        ("pythonic", "[" * 5000),
        ("pythonic", "[]"),
    ],
)
def test_an_invalid_call_stays_text(form: ToolFormat, text: str) -> None:
    assert read(form, text) == [Content(text)]


def test_a_malformed_call_does_not_hide_the_next_one() -> None:
    broken = "<tool_call>{</tool_call>"
    assert read("hermes", f"{broken}\n{HERMES}") == [Content(broken), PARIS]


@pytest.mark.parametrize(
    ("text", "is_open", "parts"),
    [
        ("<think>\nhm\n</think>\n\nYes.", False, [Reasoning("hm"), Content("Yes.")]),
        ("hm</think>Yes.", True, [Reasoning("hm"), Content("Yes.")]),
        ("\n<think></think>\n\nYes. ", False, [Content("Yes. ")]),
        ("<think>hm, <b> and </thin", False, [Reasoning("hm, <b> and </thin")]),
        ("  Yes.", False, [Content("  Yes.")]),
        ("Yes <think>no</think>", False, [Content("Yes <think>no</think>")]),
        ("hm", True, [Reasoning("hm")]),
        ("hm</think>", True, [Reasoning("hm")]),
        ("hm</think> \n", True, [Reasoning("hm")]),
        ("<thi", False, [Content("<thi")]),
        (" ", False, [Content(" ")]),
        ("", False, []),
    ],
)
def test_reasoning_is_separated_from_content(text: str, is_open: bool, parts: list[Part]) -> None:
    assert parse_complete(ReasoningParser(rest=PlainTextParser(), is_open=is_open), text) == parts


def test_calls_after_reasoning_are_found_and_calls_inside_it_are_not() -> None:
    parser = ReasoningParser(rest=tool_parser("hermes", NAMES), is_open=False)
    text = f"<think>I could {HERMES}</think>\n{HERMES}"
    assert parse_complete(parser, text) == [Reasoning(f"I could {HERMES}"), PARIS]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("... <tool_call> ...", "hermes"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3_json"),
        ("plain", None),
    ],
)
def test_the_tool_call_format_is_detected_from_the_template(
    template: str, form: ToolFormat | None
) -> None:
    assert format_of_template(template) == form


_FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "<think>",
    "</think>",
    "[",
    "]",
    "{}",
    ";",
    '{"name": "weather", "arguments": {"city": "Paris"}}',
    '{"name": "clock"}',
    '[{"name": "clock", "arguments": {}}]',
    "clock",
    "clock()",
    '[weather(city="Paris")]',
    "\n",
    " ",
    "words",
    "<",
    "é👍",
]
_TEXTS = st.lists(st.sampled_from(_FRAGMENTS) | st.text(max_size=3), max_size=8).map("".join)


@given(text=_TEXTS, form=st.sampled_from(FORMATS), is_open=st.sampled_from([None, False, True]))
def test_parts_do_not_depend_on_how_the_text_is_split(
    text: str, form: ToolFormat, is_open: bool | None
) -> None:
    def parser() -> Any:
        tools = tool_parser(form, NAMES)
        return tools if is_open is None else ReasoningParser(rest=tools, is_open=is_open)

    whole = parse_complete(parser(), text)
    for cut in range(len(text) + 1):
        two = parser()
        pieces = [*two.push(text[:cut]), *two.push(text[cut:]), *two.flush()]
        assert merge_parts(pieces) == whole, cut
    single = parser()
    pieces = [part for char in text for part in single.push(char)]
    assert merge_parts([*pieces, *single.flush()]) == whole


@given(text=_TEXTS, form=st.sampled_from(FORMATS), is_open=st.booleans())
def test_only_whitespace_and_tags_are_dropped(text: str, form: ToolFormat, is_open: bool) -> None:
    tools = tool_parser(form, frozenset())  # no tool is offered: nothing is a call
    assert parse_complete(tools, text) == ([Content(text)] if text else [])
    parts = parse_complete(
        ReasoningParser(rest=tool_parser(form, frozenset()), is_open=is_open), text
    )
    text_left = "".join(part.text for part in parts if not isinstance(part, ToolCall))
    tagless = text if is_open else text.replace("<think>", "", 1)
    left = "".join(text.split()), "".join(tagless.split())
    right = "".join(tagless.replace("</think>", "", 1).split())
    assert "".join(text_left.split()) in (*left, right)
