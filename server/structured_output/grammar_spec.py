"""Describes the grammar that a client sends for an output."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

GrammarKind = Literal["json_schema", "regex", "ebnf", "choice"]

ANY_OBJECT = '{"type":"object"}'
MAX_CHARS = 65536  # of a grammar's text
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One grammar. text is a schema as JSON, a regex, an EBNF grammar, or choices as JSON."""

    field: str = field(compare=False)  # of the request; error messages name it
    kind: GrammarKind
    text: str
    is_strict: bool = True  # otherwise an unsupported schema becomes any object

    @classmethod
    def schema(cls, field: str, schema: Any, *, is_strict: bool = True) -> "GrammarSpec":
        """Raise ValueError for a schema that is not JSON, or is too long."""
        return cls(field, "json_schema", _checked(_as_json(schema)), is_strict)

    @classmethod
    def any_object(cls, field: str) -> "GrammarSpec":
        return cls(field, "json_schema", ANY_OBJECT)

    @classmethod
    def choice(cls, field: str, choices: list[str]) -> "GrammarSpec":
        """Raise ValueError for no choice, too many choices, or an empty one."""
        if not choices or not all(choices):
            raise ValueError("must have at least one choice, and no empty one")
        if len(choices) > MAX_CHOICES:
            raise ValueError(f"must have at most {MAX_CHOICES} choices; found {len(choices)}")
        return cls(field, "choice", _checked(_as_json(choices)))

    @classmethod
    def of_text(cls, field: str, kind: Literal["regex", "ebnf"], text: str) -> "GrammarSpec":
        """Raise ValueError for text that is empty or too long."""
        if not text:
            raise ValueError("must not be empty")
        return cls(field, kind, _checked(text))


def _as_json(value: Any) -> str:
    if _num_values(value, MAX_CHARS) > MAX_CHARS:
        raise ValueError(f"must have at most {MAX_CHARS} characters")
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        text.encode()  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError) as error:
        raise ValueError("must be JSON of valid Unicode, without NaN or infinities") from error
    return text


def _num_values(value: Any, most: int) -> int:
    """Count a value and all values in it; above `most` the count is not complete."""
    num_values, pending = 0, [value]
    while pending and num_values + len(pending) <= most:
        item = pending.pop()
        num_values += 1
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return num_values + len(pending)


def _checked(text: str) -> str:
    if len(text) > MAX_CHARS:
        raise ValueError(f"must have at most {MAX_CHARS} characters; found {len(text)}")
    return text
