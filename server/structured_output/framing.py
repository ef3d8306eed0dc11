"""What stands around a grammar in an answer to a chat: thoughts before it, calls of tools.

All of it is Lark, as llguidance reads it. A mark that is one special token of the model is written
by its id, because no text says it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from server.structured_output.grammar_spec import GrammarSpec

CallFormat = Literal["hermes", "llama3_json", "mistral"]

ANSWER = "answer"  # the grammar of what is said, among the named ones
_TEXT = "TEXT: /(?s:.*)/"
_BLANK = r"BLANK: /[ \n]{0,4}/"  # between thoughts and what follows


@dataclass(frozen=True, slots=True)
class Mark:
    """A piece of text that the model marks something with."""

    text: str
    special_id: int | None = None  # of the special token that it is

    @property
    def lark(self) -> str:
        return f'"{self.text}"' if self.special_id is None else f"<[{self.special_id}]>"

    def behind_text(self, rule: str) -> str:
        """A rule of any text up to and with this mark."""
        if self.special_id is None:
            return f'{rule}[suffix="{self.text}"]: /(?s:.*)/'
        return f"{rule}: TEXT {self.lark}"


@dataclass(frozen=True, slots=True)
class Around:
    """Thoughts between two marks, before all else. is_open: the prompt has ended with `open`."""

    open: Mark
    close: Mark
    is_open: bool


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Calls of tools, with arguments that keep to the tools' schemas."""

    format: CallFormat
    begin: Mark | None  # of each call (hermes), of all (mistral)
    end: Mark | None
    arguments: tuple[tuple[str, GrammarSpec], ...]  # by tool name
    is_required: bool  # else the answer may be text, or an asked grammar's
    is_single: bool  # one call at most


@dataclass(frozen=True, slots=True)
class Frame:
    """What an answer is made of. At least one of the three is there."""

    answer: GrammarSpec | None = None
    calls: ToolCalls | None = None
    around: Around | None = None

    @classmethod
    def of(cls, answer: GrammarSpec | None) -> "Frame | None":
        """An answer without anything around it; None if it need not keep to anything."""
        return None if answer is None else cls(answer=answer)

    @property
    def asked(self) -> Mapping[str, GrammarSpec]:
        """The grammars that clients wrote, by the name that `lark` calls them."""
        named = {} if self.answer is None else {ANSWER: self.answer}
        if self.calls is not None:
            named |= {f"arguments{i}": g for i, (_, g) in enumerate(self.calls.arguments)}
        return named

    def lark(self) -> str | None:
        """The grammar around them; None where there is nothing around the answer's own."""
        if self.calls is None and self.around is None:
            return None
        rules = [] if self.calls is None else _call_rules(self.calls)
        body = self._body(rules)
        if self.around is not None:
            opening = f"{self.around.open.lark} thought BLANK"
            before = "thought BLANK" if self.around.is_open else f"({opening})?"
            rules += [self.around.close.behind_text("thought"), _BLANK]
            body = f"{before} ({body})"
        return "\n".join([f"start: {body}", *rules, _TEXT, ""])

    def _body(self, rules: list[str]) -> str:
        if self.calls is None:
            return f"@{ANSWER}"
        if self.calls.is_required:
            return "calls"
        if self.answer is not None:
            return f"calls | @{ANSWER}"
        begin = self.calls.begin
        assert begin is not None, f"text beside calls of format {self.calls.format}"
        rules += [begin.behind_text("text"), _without(begin)]
        times = "?" if self.calls.is_single or self.calls.format == "mistral" else "*"
        return f"(text rest){times} REST"


def _call_rules(calls: ToolCalls) -> list[str]:
    """`calls`: all of them; `rest`: the same, or one of hermes' format, behind its first mark."""
    key = "parameters" if calls.format == "llama3_json" else "arguments"
    bodies = [
        f'"{{\\"name\\": \\"{name}\\", \\"{key}\\": " @arguments{i} "}}"'
        for i, (name, _) in enumerate(calls.arguments)
    ]
    rules = [f"call: {' | '.join(bodies)}"]
    many = "" if calls.is_single else "*"
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
            more = f' ("; " call){many}' if many else ""
            rules.append(f"calls: call{more}")
    return rules


def _without(mark: Mark) -> str:
    """A terminal of text in which the mark is not."""
    if mark.special_id is not None:
        return "REST: /(?s:.*)/"
    pattern = re.escape(mark.text).replace("/", r"\/")
    return f"REST: /(?s:.*)/ & ~/(?s:.*){pattern}(?s:.*)/"
