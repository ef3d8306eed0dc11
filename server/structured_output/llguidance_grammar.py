"""From what was asked for to the grammar that the library reads: llguidance's own JSON.

    {"grammars": [{"name": ..., "lark_grammar": ...}, {"name": ..., "json_schema": ...}, ...]}

The first grammar is the answer's; it reaches the others by "@name".
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from server.structured_output.grammar_spec import GrammarKind

# Between the parts of a JSON text: nothing, a space, or a new line with its indentation. More
# would let a model that is at a loss say blanks for ever.
_OPTIONS = "x-guidance"
BLANKS = r"(\n[ \t]{0,32}| )?"


class GrammarError(ValueError):
    """A grammar that cannot be served; the message says why."""


def written_part(kind: GrammarKind, text: str) -> dict[str, Any]:
    """One grammar of the list, without a name. Raises GrammarError."""
    match kind:
        case "json_schema":
            return _schema(text)
        case "regex":
            return _first(LLMatcher.grammar_from_regex(text))
        case "ebnf":
            return {"lark_grammar": _lark(text)}
        case "choice":
            choices = " | ".join(json.dumps(choice) for choice in json.loads(text))
            return {"lark_grammar": f"start: {choices}\n"}


def joined(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The grammars by name, the answer's first."""
    return json.dumps({"grammars": [{"name": name, **part} for name, part in parts.items()]})


def first_words(error: str) -> str:
    """What is wrong, of the library's words, without the matcher's state behind it."""
    return re.split(r"<state>|<non-verbose/>", error, maxsplit=1)[0].strip()


def failing_place(schema: Any, error_of: Callable[[Any], str | None]) -> str:
    """JSON pointer to the innermost schema that fails as the whole does; "" is the whole.

    error_of tells what is wrong with a schema on its own, or None.
    """
    error, place = error_of(schema), ""
    definitions = _definitions(schema)
    while isinstance(schema, dict):
        for name, child in _children(schema):
            alone = {**definitions, **child} if isinstance(child, dict) else child
            if error_of(alone) == error:
                schema, place = child, f"{place}/{name}"
                break
        else:
            break
    return place


def _schema(text: str) -> dict[str, Any]:
    if text == "false":
        raise GrammarError("false allows no value")
    text = "{}" if text == "true" else text
    _refuse_options(text)
    options = {"whitespace_pattern": BLANKS}
    try:
        _refuse_counted_keys(json.loads(text))
        return _first(LLMatcher.grammar_from_json_schema(text, overrides=options))  # type: ignore[arg-type]
    except RecursionError as error:
        raise GrammarError("is nested too deeply") from error
    except ValueError as error:
        raise GrammarError(str(error)) from error


def _first(grammar: str) -> dict[str, Any]:
    part: dict[str, Any] = json.loads(grammar)["grammars"][0]
    part.pop("name", None)
    return {key: value for key, value in part.items() if value is not None}


def _refuse_options(text: str) -> None:
    """The library reads options out of a schema, which would lift what is refused here."""
    if _OPTIONS in text:
        raise GrammarError(f"{_OPTIONS} is not accepted")


def _refuse_counted_keys(schema: Any) -> None:
    """The library lets an object say a key twice, which would count twice and be one in the end."""
    if isinstance(schema, list):
        for one in schema:
            _refuse_counted_keys(one)
    elif isinstance(schema, dict):
        least, required = schema.get("minProperties"), schema.get("required")
        if isinstance(least, int) and least > (len(required) if isinstance(required, list) else 0):
            raise GrammarError("minProperties beyond the properties that are required")
        for key, part in schema.items():
            if key not in _VALUES:
                _refuse_counted_keys(part)


def _lark(text: str) -> str:
    """GBNF, which writes `::=`, as Lark; Lark as it is. Both are called EBNF by their users."""
    _refuse_options(text)
    try:
        return any_to_lark(text)
    except RecursionError as error:
        raise GrammarError("is nested too deeply") from error
    except Exception as error:  # the converter has no family of errors
        raise GrammarError(str(error)) from error


def _definitions(schema: Any) -> dict[str, Any]:
    names = ("$defs", "definitions")
    return {n: schema[n] for n in names if isinstance(schema, dict) and n in schema}


_VALUES = ("const", "enum", "default", "examples")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def _children(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The schemas inside a schema, with their places."""
    found = [(key, schema[key]) for key in _SINGLE if isinstance(schema.get(key), dict)]
    for key in _BY_NAME:
        if isinstance(schema.get(key), dict):
            found += [(f"{key}/{_escaped(name)}", child) for name, child in schema[key].items()]
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            found += [(f"{key}/{i}", child) for i, child in enumerate(schema[key])]
    return found


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
