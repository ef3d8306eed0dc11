"""Converts a client's grammar to llguidance's JSON form.

    {"grammars": [{"name": ..., "lark_grammar": ...}, {"name": ..., "json_schema": ...}, ...]}

The first grammar describes the whole output; it refers to the others by "@name".
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from server.structured_output.grammar_spec import GrammarKind

_OPTIONS = "x-guidance"  # the key of llguidance's own options inside a schema
# Between the parts of a JSON text: nothing, a space, or a line break with its indentation. Without
# a bound a model could generate whitespace without end.
WHITESPACE = r"(\n[ \t]{0,32}| )?"


class GrammarError(ValueError):
    """A grammar that cannot be served; the message has the reason."""


def grammar_part(kind: GrammarKind, text: str) -> dict[str, Any]:
    """Return one entry of the list, without a name. Raises GrammarError."""
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


def grammar_list(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the JSON of all grammars; the first describes the whole output."""
    return json.dumps({"grammars": [{"name": name, **part} for name, part in parts.items()]})


def error_summary(error: str) -> str:
    """Return the library's message without the matcher state that follows it."""
    return re.split(r"<state>|<non-verbose/>", error, maxsplit=1)[0].strip()


def failing_location(schema: Any, error_of: Callable[[Any], str | None]) -> str:
    """Return the JSON pointer of the innermost subschema with the error of the whole schema.

    error_of returns the error of a schema on its own, or None.
    """
    error, location = error_of(schema), ""
    definitions = _definitions(schema)
    while isinstance(schema, dict):
        for name, child in _children(schema):
            alone = {**definitions, **child} if isinstance(child, dict) else child
            if error_of(alone) == error:
                schema, location = child, f"{location}/{name}"
                break
        else:
            break
    return location


def _schema(text: str) -> dict[str, Any]:
    if text == "false":
        raise GrammarError("false allows no value")
    text = "{}" if text == "true" else text
    _refuse_options(text)
    options = {"whitespace_pattern": WHITESPACE}
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
    """Refuse llguidance options inside a schema: they would lift the checks made here."""
    if _OPTIONS in text:
        raise GrammarError(f"{_OPTIONS} is not accepted")


def _refuse_counted_keys(schema: Any) -> None:
    """Refuse minProperties above the required ones: the library counts a repeated key twice."""
    if isinstance(schema, list):
        for item in schema:
            _refuse_counted_keys(item)
    elif isinstance(schema, dict):
        minimum, required = schema.get("minProperties"), schema.get("required")
        if isinstance(minimum, int) and minimum > (
            len(required) if isinstance(required, list) else 0
        ):
            raise GrammarError("minProperties above the number of required properties")
        for key, part in schema.items():
            if key not in _VALUES:
                _refuse_counted_keys(part)


def _lark(text: str) -> str:
    """Return GBNF (which uses `::=`) as Lark, and Lark unchanged. Users call both EBNF."""
    _refuse_options(text)
    try:
        return any_to_lark(text)
    except RecursionError as error:
        raise GrammarError("is nested too deeply") from error
    except Exception as error:  # the converter has no common error class
        raise GrammarError(str(error)) from error


def _definitions(schema: Any) -> dict[str, Any]:
    names = ("$defs", "definitions")
    return {n: schema[n] for n in names if isinstance(schema, dict) and n in schema}


_VALUES = ("const", "enum", "default", "examples")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def _children(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the direct subschemas with their JSON pointers."""
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
