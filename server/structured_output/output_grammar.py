"""Writes the grammar of a whole output: reasoning, tool calls and content, as Lark.

llguidance reads the Lark text. A tag that is a special token is written by its id, because its
text cannot be generated.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from server.structured_output.grammar_spec import GrammarSpec

CallFormat = Literal["hermes", "llama3_json", "mistral"]

CONTENT = "content"  # name of the content's grammar inside the combined one
_TEXT = "TEXT: /(?s:.*)/"
_BLANK = r"BLANK: /[ \n]{0,4}/"  # between reasoning and what follows


@dataclass(frozen=True, slots=True)
class Tag:
    """Text that marks the beginning or end of reasoning or of a tool call."""

    text: str
    special_id: int | None = None  # where the tag is a special token

    @property
    def lark(self) -> str:
        return f'"{self.text}"' if self.special_id is None else f"<[{self.special_id}]>"

    def rule_up_to(self, name: str) -> str:
        """Return a Lark rule that matches any text up to and including this tag."""
        if self.special_id is None:
            return f'{name}[suffix="{self.text}"]: /(?s:.*)/'
        return f"{name}: TEXT {self.lark}"


@dataclass(frozen=True, slots=True)
class ReasoningGrammar:
    """Reasoning between two tags, before everything else."""

    open: Tag
    close: Tag
    is_open: bool  # the prompt ends with `open`


@dataclass(frozen=True, slots=True)
class ToolCallGrammar:
    """Tool calls whose arguments follow the tools' schemas."""

    format: CallFormat
    begin: Tag | None  # of each call (hermes), of the list of calls (mistral)
    end: Tag | None
    arguments: tuple[tuple[str, GrammarSpec], ...]  # by tool name
    is_required: bool  # otherwise the output may be text, or the content's grammar
    is_single: bool  # at most one call


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """The grammar of one output. At least one of the three parts is set."""

    content: GrammarSpec | None = None
    tool_calls: ToolCallGrammar | None = None
    reasoning: ReasoningGrammar | None = None
    opens_objects: bool = False  # objects of schemas allow properties that they do not name

    @classmethod
    def of_content(cls, content: GrammarSpec | None) -> "OutputGrammar | None":
        """Return the grammar of an output of content alone; None where it is unconstrained."""
        return None if content is None else cls(content=content)

    @property
    def specs(self) -> Mapping[str, GrammarSpec]:
        """The client's grammars, by the names that `lark` uses."""
        named = {} if self.content is None else {CONTENT: self.content}
        if self.tool_calls is not None:
            named |= {f"arguments{i}": g for i, (_, g) in enumerate(self.tool_calls.arguments)}
        return named

    def lark(self) -> str | None:
        """Return the grammar that combines the specs; None where the content is all there is."""
        if self.tool_calls is None and self.reasoning is None:
            return None
        rules = [] if self.tool_calls is None else _call_rules(self.tool_calls)
        body = self._body(rules)
        if self.reasoning is not None:
            opening = f"{self.reasoning.open.lark} reasoning BLANK"
            before = "reasoning BLANK" if self.reasoning.is_open else f"({opening})?"
            rules += [self.reasoning.close.rule_up_to("reasoning"), _BLANK]
            body = f"{before} ({body})"
        return "\n".join([f"start: {body}", *rules, _TEXT, ""])

    def _body(self, rules: list[str]) -> str:
        calls = self.tool_calls
        if calls is None:
            return f"@{CONTENT}"
        if calls.is_required:
            return "calls"
        if self.content is not None:
            return f"calls | @{CONTENT}"
        assert calls.begin is not None, f"text next to calls of format {calls.format}"
        rules += [calls.begin.rule_up_to("text"), _text_without(calls.begin)]
        times = "?" if calls.is_single or calls.format == "mistral" else "*"
        return f"(text rest){times} REST"


def _call_rules(calls: ToolCallGrammar) -> list[str]:
    """Return the rules `calls`, all calls, and `rest`, what follows the first begin tag.

    `rest` ends with the call in the hermes format, with the list of calls in the mistral format.
    """
    key = "parameters" if calls.format == "llama3_json" else "arguments"
    bodies = [
        f'"{{\\"name\\": \\"{name}\\", \\"{key}\\": " @arguments{i} "}}"'
        for i, (name, _) in enumerate(calls.arguments)
    ]
    rules = [f"call: {' | '.join(bodies)}"]
    match calls.format:
        case "hermes":
            assert calls.begin is not None
            assert calls.end is not None
            rules.append(f'rest: "\\n" call "\\n" {calls.end.lark}')
            more = "" if calls.is_single else f' ("\\n" {calls.begin.lark} rest)*'
            rules.append(f"calls: {calls.begin.lark} rest{more}")
        case "mistral":
            assert calls.begin is not None
            more = "" if calls.is_single else ' (", " call)*'
            rules.append(f'rest: "[" call{more} "]"')
            rules.append(f"calls: {calls.begin.lark} rest")
        case "llama3_json":
            more = "" if calls.is_single else ' ("; " call)*'
            rules.append(f"calls: call{more}")
    return rules


def _text_without(tag: Tag) -> str:
    """Return a Lark terminal that matches text without the tag."""
    if tag.special_id is not None:
        return "REST: /(?s:.*)/"
    pattern = re.escape(tag.text).replace("/", r"\/")
    return f"REST: /(?s:.*)/ & ~/(?s:.*){pattern}(?s:.*)/"
