"""What a client may ask an answer to look like."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

GrammarKind = Literal["json_schema", "regex", "ebnf", "choice"]

ANY_OBJECT = '{"type":"object"}'
MAX_CHARS = 65536  # of a grammar's text
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One grammar. The text is a schema's JSON, a regex, a grammar, or the choices as JSON."""

    field: str = field(compare=False)  # the client's name for it, for refusals
    kind: GrammarKind
    text: str
    is_strict: bool = True  # else any object will do where the schema cannot be served

    @classmethod
    def schema(cls, field: str, schema: Any, *, is_strict: bool = True) -> "GrammarSpec":
        """Raises ValueError for what JSON cannot carry, and for what is too long."""
        return cls(field, "json_schema", _checked(_as_json(schema)), is_strict)

    @classmethod
    def any_object(cls, field: str) -> "GrammarSpec":
        return cls(field, "json_schema", ANY_OBJECT)

    @classmethod
    def choice(cls, field: str, choices: list[str]) -> "GrammarSpec":
        """Raises ValueError where there are none, too many, or an empty one."""
        if not choices or not all(choices):
            raise ValueError("must have at least one choice, and none that is empty")
        if len(choices) > MAX_CHOICES:
            raise ValueError(f"must have at most {MAX_CHOICES} choices; found {len(choices)}")
        return cls(field, "choice", _checked(_as_json(choices)))

    @classmethod
    def written(cls, field: str, kind: Literal["regex", "ebnf"], text: str) -> "GrammarSpec":
        """Raises ValueError where it is empty or too long."""
        if not text:
            raise ValueError("must not be empty")
        return cls(field, kind, _checked(text))


def _as_json(value: Any) -> str:
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        text.encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise ValueError("must be JSON of valid Unicode, without NaN or infinities") from error
    return text


def _checked(text: str) -> str:
    if len(text) > MAX_CHARS:
        raise ValueError(f"must have at most {MAX_CHARS} characters; found {len(text)}")
    return text
