"""Defines the parts of parsed output: content, reasoning and tool calls."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

_CALL_ID_CHARS = 9  # Mistral's templates accept no other length


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str  # JSON, an object


Part = Content | Reasoning | ToolCall


class Parser(Protocol):
    """Parses the text of one completion incrementally.

    The merged parts depend on the whole text only, not on how it is split. No text is lost, except
    whitespace next to tool calls and reasoning.
    """

    def push(self, text: str) -> list[Part]:
        """Return the parts that are certain after this text."""
        ...

    def flush(self) -> list[Part]:
        """Return the remaining parts at the end of the text."""
        ...


NewParser = Callable[[], Parser]


class PlainTextParser:
    """Returns all text as content."""

    def push(self, text: str) -> list[Part]:
        return content_parts(text)

    def flush(self) -> list[Part]:
        return []


class CallsOnly:
    """Drops content next to required calls: the marks of a call that its limit cut off."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def push(self, text: str) -> list[Part]:
        return _without_content(self._parser.push(text))

    def flush(self) -> list[Part]:
        return _without_content(self._parser.flush())


def _without_content(parts: Iterable[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, Content)]


def content_parts(text: str) -> list[Part]:
    return [Content(text)] if text else []


def parse_complete(parser: Parser, text: str) -> list[Part]:
    """Return the merged parts of a complete text."""
    return merge_parts([*parser.push(text), *parser.flush()])


def merge_parts(parts: Iterable[Part]) -> list[Part]:
    """Merge adjacent parts of content, and of reasoning."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + part.text)
        else:
            result.append(part)
    return result


def partial_tag_len(text: str, tag: str) -> int:
    """Return the length of the longest suffix that may begin the tag; the text lacks the tag."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def new_call_id() -> str:
    return uuid4().hex[:_CALL_ID_CHARS]
