"""Defines the fields for grammars, under the names of several servers."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from server.errors.validation_errors import field_error, quote
from server.protocol.base import Body, JsonObject, Text, item_count
from server.protocol.common import SamplingFields
from server.protocol.json_scan import MAX_NESTED_VALUES, bounds_error
from server.structured_output.grammar_spec import MAX_CHOICES, GrammarKind, GrammarSpec

_MAX_STRUCTURES = 64  # fields of structured_outputs
Source = tuple[GrammarKind | Literal["json_object"], str, Any]  # kind, the field's name, value


# How the OpenAPI document describes fields that are validated by hand.
_SCHEMA: Any = {
    "type": ["object", "boolean", "string", "null"],
    "contentMediaType": "application/json",
}
_NOT_EMPTY: Any = {"minLength": 1}
_CHOICES: Any = {"minItems": 1, "items": _NOT_EMPTY}
_FORMAT: Any = {
    "properties": {
        "name": {"type": ["string", "null"]},
        "description": {"type": ["string", "null"]},
        "strict": {"type": ["boolean", "null"]},
        "schema": {"type": ["object", "boolean", "null"]},
    },
    "additionalProperties": False,
}

Choices = Annotated[list[Text], item_count(MAX_CHOICES)]


class GrammarFields(SamplingFields):
    """Grammar fields; a request may have one grammar."""

    json_schema: Any = Field(None, json_schema_extra=_SCHEMA)  # a schema, or its JSON as text
    regex: Text | None = Field(None, json_schema_extra=_NOT_EMPTY)  # of the whole output
    # GBNF (`root ::= ...`) or Lark (`start: ...`)
    ebnf: Text | None = Field(None, json_schema_extra=_NOT_EMPTY)
    # The output is one of these.
    choice: Choices | None = Field(None, json_schema_extra=_CHOICES)

    def grammar_sources(self) -> Iterator[Source]:
        """Yield every grammar field; the value is None where it is not set."""
        yield "json_schema", "json_schema", self.json_schema
        yield "regex", "regex", self.regex
        yield "ebnf", "ebnf", self.ebnf
        yield "choice", "choice", self.choice

    def grammar_spec(self, prefix: str = "") -> GrammarSpec | None:
        given = [source for source in self.grammar_sources() if source[2] is not None]
        if not given:
            return None
        kind, field, value = given[0]
        return grammar_of(kind, prefix + field, value)

    @model_validator(mode="after")
    def _one_grammar(self) -> Self:
        given = [source for source in self.grammar_sources() if source[2] is not None]
        for kind, field, value in given:
            try:
                grammar_of(kind, field, value)
            except ValueError as error:
                raise field_error("grammar", field, f"{error}; found {quote(value)}") from error
        if len(given) > 1:
            raise field_error(
                "grammar", given[1][1], f"and '{given[0][1]}' both set a grammar; send one"
            )
        return self


class ResponseFormat(Body):
    """The form of the text. json_schema is required with that type, and only accepted there."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonObject | None = Field(None, json_schema_extra=_FORMAT)

    def sources(self) -> Iterator[Source]:
        if self.type == "json_object":
            yield "json_object", "response_format", True
        if self.type == "json_schema":
            assert self.json_schema is not None
            schema = self.json_schema.get("schema")
            if schema is None:
                yield "json_object", "response_format", True
            else:
                yield "json_schema", "response_format.json_schema.schema", schema

    @model_validator(mode="after")
    def _json_schema_matches_type(self) -> Self:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            message = "is required with 'type': 'json_schema', and only accepted there"
            raise field_error("kind", "json_schema", message)
        known = {"name": str, "description": str, "strict": bool, "schema": object}
        for name, value in (self.json_schema or {}).items():
            if name not in known:
                accepted = ", ".join(known)
                message = f"is an unknown field; accepted: {accepted}"
                raise field_error("unknown_field", f"json_schema.{quote(name)[1:-1]}", message)
            if value is not None and not isinstance(value, known[name]):
                kind = "true or false" if known[name] is bool else "a string"
                message = f"must be {kind}; found {quote(value)}"
                raise field_error("kind", f"json_schema.{name}", message)
        return self


# vLLM's names inside `structured_outputs`.
_STRUCTURED: dict[str, GrammarKind | Literal["json_object"]] = {
    "json": "json_schema",
    "regex": "regex",
    "grammar": "ebnf",
    "choice": "choice",
    "json_object": "json_object",
}


_STRUCTURES: Any = {
    "properties": {
        "json": _SCHEMA,
        "regex": {"type": ["string", "null"], **_NOT_EMPTY},
        "grammar": {"type": ["string", "null"], **_NOT_EMPTY},
        "choice": {
            "type": ["array", "null"],
            "minItems": 1,
            "items": {"type": "string", **_NOT_EMPTY},
        },
        "json_object": {"type": ["boolean", "null"]},
    },
    "additionalProperties": {"enum": [None, False]},
}


class OpenAIGrammarFields(GrammarFields):
    response_format: ResponseFormat | None = None
    structured_outputs: Annotated[dict[str, Any], Field(max_length=_MAX_STRUCTURES)] | None = Field(
        None, json_schema_extra=_STRUCTURES
    )
    guided_json: Any = Field(None, json_schema_extra=_SCHEMA)
    guided_regex: Text | None = Field(None, json_schema_extra=_NOT_EMPTY)
    guided_grammar: Text | None = Field(None, json_schema_extra=_NOT_EMPTY)
    guided_choice: Choices | None = Field(None, json_schema_extra=_CHOICES)

    def grammar_sources(self) -> Iterator[Source]:
        yield from super().grammar_sources()
        if self.response_format is not None:
            yield from self.response_format.sources()
        for name, value in (self.structured_outputs or {}).items():
            if name in _STRUCTURED and value is not False:
                yield _STRUCTURED[name], f"structured_outputs.{name}", value
        yield "json_schema", "guided_json", self.guided_json
        yield "regex", "guided_regex", self.guided_regex
        yield "ebnf", "guided_grammar", self.guided_grammar
        yield "choice", "guided_choice", self.guided_choice

    @model_validator(mode="after")
    def _known_structures(self) -> Self:
        for name, value in (self.structured_outputs or {}).items():
            if name not in _STRUCTURED and value not in (None, False):
                message = f"is not supported; accepted: {', '.join(_STRUCTURED)}"
                raise field_error(
                    "unserved_field", f"structured_outputs.{quote(name)[1:-1]}", message
                )
        return self


def grammar_of(kind: GrammarKind | Literal["json_object"], field: str, value: Any) -> GrammarSpec:
    """Return the grammar of a field. Raises ValueError for a wrong type, or bad length."""
    match kind:
        case "json_object":
            if value is not True:
                raise ValueError("must be true")
            return GrammarSpec.any_object(field)
        case "json_schema":
            return GrammarSpec.schema(field, _schema(value))
        case "choice":
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ValueError("must be a list of strings")
            return GrammarSpec.choice(field, value)
        case "regex" | "ebnf":
            if not isinstance(value, str):
                raise ValueError("must be a string")
            return GrammarSpec.of_text(field, kind, value)


def _schema(value: Any) -> Any:
    if isinstance(value, str):
        problem = bounds_error(value, max_values=MAX_NESTED_VALUES)
        if problem is not None:
            raise ValueError(problem)
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError("must be a JSON schema, or the JSON of one as text") from error
    if not isinstance(value, dict | bool):
        raise ValueError("must be a JSON schema: an object, true or false")
    return value
