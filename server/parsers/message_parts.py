"""What an answer's text consists of: things said, thoughts, and calls of tools."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


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
    """Reads one answer's text as it grows.

    The parts, with neighbours of one kind joined, depend on the whole text alone and not on
    where it is cut. No text is lost but blanks beside calls and thoughts.
    """

    def push(self, text: str) -> list[Part]:
        """What is certain now and was not before."""
        ...

    def flush(self) -> list[Part]:
        """The rest, once no more text will come."""
        ...


NewParser = Callable[[], Parser]


class PlainText:
    """All of it was said."""

    def push(self, text: str) -> list[Part]:
        return said(text)

    def flush(self) -> list[Part]:
        return []


def said(text: str) -> list[Part]:
    return [Content(text)] if text else []


def read_whole(parser: Parser, text: str) -> list[Part]:
    """The parts of a complete text, neighbours of one kind joined."""
    return joined([*parser.push(text), *parser.flush()])


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same with neighbouring texts of one kind as one part."""
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


def num_undecided(text: str, tag: str) -> int:
    """Trailing characters of a text that may be the beginning of the tag, which is not in it."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
