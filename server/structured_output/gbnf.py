"""Converts GBNF, the grammars of llama.cpp, to Lark."""

import json
import re
from typing import Any

from llguidance.gbnf_to_lark import GrammarParser, Position, resolve

from server.structured_output.json_schema import GrammarError

_ESCAPE = re.compile(
    r"""\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(["\\\[\]nrt]))"""
)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def lark_of_gbnf(text: str) -> str:
    """Return the grammar as Lark. Raises GrammarError."""
    try:
        rules = _Parser().parse(text)
        resolve(rules)
    except RecursionError:
        raise
    except Exception as error:  # the converter has no common error class
        raise GrammarError(str(error)) from error
    in_order = sorted(rules.values(), key=lambda rule: rule.order)
    return "\n".join(["%llguidance {}", *map(str, in_order), ""])


class _Parser(GrammarParser):
    """The library's parser, with every escape of llama.cpp spelled as Lark has it."""

    _is_in_class = False

    def _parse_literal(self, pos: Position) -> Any:
        self._is_in_class = False
        return super()._parse_literal(pos)

    def _parse_char_class(self, pos: Position) -> Any:
        self._is_in_class = True
        return super()._parse_char_class(pos)

    def _parse_char(self, pos: Position) -> tuple[str, Position]:
        escape = _ESCAPE.match(pos.text, pos.pos)
        if escape is not None:
            return self._spelled(_character(escape)), pos.advance(len(escape[0]))
        char, after = super()._parse_char(pos)
        is_syntax = char.isalnum() or char in ("^-]" if self._is_in_class else '"')
        return char if is_syntax else self._spelled(char), after

    def _spelled(self, char: str) -> str:
        """Return a character that stands for itself in a class, or in a literal."""
        if self._is_in_class:
            return f"\\x{{{ord(char):x}}}"
        return json.dumps(char, ensure_ascii=False)[1:-1]


def _character(escape: re.Match[str]) -> str:
    *codes, letter = escape.groups()
    if letter is not None:
        return _LETTERS.get(letter, letter)
    code = int(next(filter(None, codes)), 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise GrammarError(f"{escape[0]} is not a character of Unicode")
    return chr(code)
