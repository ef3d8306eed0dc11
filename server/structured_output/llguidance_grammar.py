"""Converts a client's grammar to llguidance's JSON form.

    {"grammars": [{"name": ..., "lark_grammar": ...}, {"name": ..., "json_schema": ...}, ...]}

The first grammar describes the whole output; it refers to the others by "@name".
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import is_lark_syntax

from server.structured_output.ascii_classes import ascii_classes, ascii_lark
from server.structured_output.closed_objects import close_objects
from server.structured_output.gbnf import lark_of_gbnf
from server.structured_output.grammar_spec import GrammarKind
from server.structured_output.json_schema import (
    LIBRARY_OPTIONS,
    SCHEMAS_BY_NAME,
    GrammarError,
    escaped,
    exact_schema,
)

ConvertSchema = Callable[[Any], dict[str, Any]]  # a client's schema, as llguidance takes it

# Cost limits of a grammar, in llguidance's units.
LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)

# Between the parts of a JSON text: nothing, a space, or a line break with its indentation. Without
# a bound a model could generate whitespace without end.
WHITESPACE = r"(\n[ \t]{0,32}| )?"
# The tokens of a Lark text in which `%json` is no keyword, or the keyword.
_LARK_TOKEN = re.compile(
    r"""(?:\#|//)[^\n]* | "(?:\\.|[^"\\\n])*" | /(?:\\.|[^/\\])+/ | <[^<>\s]+> | %json | . """,
    re.DOTALL | re.VERBOSE,
)


def grammar_part(kind: GrammarKind, text: str, *, opens_objects: bool = False) -> dict[str, Any]:
    """Return one entry of the list, without a name. Raises GrammarError.

    With opens_objects an object that names properties allows others too, as JSON Schema does.
    """
    try:
        return _part(kind, text, partial(_schema, opens_objects=opens_objects))
    except RecursionError as error:
        raise GrammarError("is nested too deeply") from error


def _part(kind: GrammarKind, text: str, convert: ConvertSchema) -> dict[str, Any]:
    match kind:
        case "json_schema":
            return {"json_schema": convert(json.loads(text))}
        case "regex":
            return _first(LLMatcher.grammar_from_regex(ascii_classes(text)))
        case "ebnf":
            return {"lark_grammar": ascii_lark(_lark(text, convert))}
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


def _schema(schema: Any, *, opens_objects: bool) -> dict[str, Any]:
    """Return the schema as llguidance takes it, with this server's options."""
    if schema is False:
        raise GrammarError("false allows no value")
    exact = exact_schema({} if schema is True else schema)
    if not opens_objects:
        exact = close_objects(exact)
    return {**exact, LIBRARY_OPTIONS: {"whitespace_pattern": WHITESPACE}}


def _first(grammar: str) -> dict[str, Any]:
    part: dict[str, Any] = json.loads(grammar)["grammars"][0]
    part.pop("name", None)
    return {key: value for key, value in part.items() if value is not None}


def _lark(text: str, convert: ConvertSchema) -> str:
    """Return GBNF (which uses `::=`) or Lark as Lark. Users call both EBNF."""
    return _with_exact_schemas(text if is_lark_syntax(text) else lark_of_gbnf(text), convert)


def _with_exact_schemas(lark: str, convert: ConvertSchema) -> str:
    """Rewrite the schemas of a Lark text's `%json` as those of `json_schema`."""
    pieces, at = [], 0
    while token := _LARK_TOKEN.match(lark, at):
        at = token.end()
        pieces.append(token[0])
        if token[0] == "%json":
            schema, at = _schema_at(lark, at)
            pieces.append(f" {json.dumps(convert(schema))}")
    return "".join(pieces)


def _schema_at(lark: str, at: int) -> tuple[Any, int]:
    """Return the schema at a position of a Lark text, and where it ends."""
    at += len(lark[at:]) - len(lark[at:].lstrip(" \t\r\n"))
    try:
        schema, end = json.JSONDecoder().raw_decode(lark, at)
    except ValueError as error:
        raise GrammarError(f"%json is not followed by JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise GrammarError("%json must be a JSON schema: an object, true or false")
    return schema, end


def _definitions(schema: Any) -> dict[str, Any]:
    names = ("$defs", "definitions")
    return {n: schema[n] for n in names if isinstance(schema, dict) and n in schema}


_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def _children(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the direct subschemas with their JSON pointers."""
    found = [(key, schema[key]) for key in _SINGLE if isinstance(schema.get(key), dict)]
    for key in SCHEMAS_BY_NAME:
        if isinstance(schema.get(key), dict):
            found += [(f"{key}/{escaped(name)}", child) for name, child in schema[key].items()]
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            found += [(f"{key}/{i}", child) for i, child in enumerate(schema[key])]
    return found
