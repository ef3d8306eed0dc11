"""Closes the objects of a JSON schema that do not say whether other properties are allowed.

A small model otherwise invents properties and never ends. xgrammar and OpenAI's strict mode do
the same. Schemas that are combined (allOf, $ref with siblings) are closed as a whole: a branch that
is closed by itself would exclude the properties of the others.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from server.structured_output.json_schema import SCHEMAS_BY_NAME, VALUES

_OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_BRANCHES = ("allOf", "anyOf", "oneOf")
_DEFINITIONS = "$defs"
_OPEN = "__open"  # begins the name of a definition's copy that is a branch


def close_objects(schema: Any) -> Any:
    """Return the schema with `additionalProperties: false` in objects that name properties.

    An object stays open that sets one of _OPENING, names no property, or requires one that it does
    not name; so does everything under a reference that is not a local definition.
    """
    if not isinstance(schema, dict):
        return schema
    closer = _Closer(schema)
    result = closer.standalone(schema)
    return closer.with_open_definitions(result)


class _Closer:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._open: dict[str, Any] = {}  # copies of definitions that are branches
        self._open_names: dict[str, str] = {}  # by reference

    def standalone(self, schema: Any) -> Any:
        """Return a schema that describes a whole value."""
        if not isinstance(schema, dict):
            return schema
        combines = "allOf" in schema or "properties" in schema or "$ref" in schema
        is_merged = combines and any(key in schema for key in (*_BRANCHES, "properties"))
        result = self._with_children(schema, is_merged=is_merged)
        names = self._names(schema, frozenset()) if is_merged else None
        required = _list(schema.get("required"))
        if names is None or any(name not in names for name in required):
            return result
        own = result.get("properties", {})
        properties = {**own, **{name: True for name in sorted(names) if name not in own}}
        return {**result, "properties": properties, "additionalProperties": False}

    def with_open_definitions(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema with the copies that its branches refer to."""
        if not self._open:
            return schema
        return {**schema, _DEFINITIONS: {**schema.get(_DEFINITIONS, {}), **self._open}}

    def _branch(self, schema: Any) -> Any:
        """Return a schema that describes a value together with others: it stays open."""
        return self._with_children(schema, is_merged=True) if isinstance(schema, dict) else schema

    def _with_children(self, schema: dict[str, Any], *, is_merged: bool) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in schema.items():
            if key in VALUES:
                result[key] = value
            elif key in _BRANCHES and isinstance(value, list):
                change = self._branch if is_merged or key == "allOf" else self.standalone
                result[key] = [change(item) for item in value]
            elif key == "$ref" and is_merged:
                result[key] = self._open_reference(value)
            elif key in SCHEMAS_BY_NAME and isinstance(value, dict):
                result[key] = {name: self.standalone(item) for name, item in value.items()}
            elif isinstance(value, list):
                result[key] = [self.standalone(item) for item in value]
            else:
                result[key] = self.standalone(value)
        return result

    def _open_reference(self, reference: Any) -> Any:
        """Return a reference to an open copy of a definition."""
        target = self._resolve(reference)
        if target is None:
            return reference
        name = self._open_names.get(reference)
        if name is None:  # noted first, because a definition may refer to itself
            name = self._open_names[reference] = f"{_OPEN}{len(self._open_names)}"
            self._open[name] = self._branch(target)
        return f"#/{_DEFINITIONS}/{name}"

    def _names(self, schema: Any, seen: frozenset[str]) -> set[str] | None:
        """Return the names of all properties; None where others are allowed, or none is named."""
        found = list(self._parts(schema, seen))
        if any(part is None for part in found):
            return None
        named = [part["properties"] for part in found if part and "properties" in part]
        if not all(isinstance(properties, dict) for properties in named):
            return None  # the library refuses it
        return set().union(*named) if named else None

    def _parts(self, schema: Any, seen: frozenset[str]) -> Iterator[Mapping[str, Any] | None]:
        """Yield the schemas that are merged; None for one whose properties are not known."""
        if not isinstance(schema, dict):
            return
        yield None if any(key in schema for key in _OPENING) else schema
        for key in _BRANCHES:
            for branch in _list(schema.get(key)):
                yield from self._parts(branch, seen)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            target = self._resolve(reference)
            if target is None:
                yield None
            else:
                yield from self._parts(target, seen | {reference})

    def _resolve(self, reference: Any) -> dict[str, Any] | None:
        """Return the definition at the top of the document that a reference names."""
        for holder in (_DEFINITIONS, "definitions"):
            prefix = f"#/{holder}/"
            if isinstance(reference, str) and reference.startswith(prefix):
                name = reference.removeprefix(prefix).replace("~1", "/").replace("~0", "~")
                definitions = self._root.get(holder)
                target = definitions.get(name) if isinstance(definitions, dict) else None
                return target if isinstance(target, dict) else None
        return None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
