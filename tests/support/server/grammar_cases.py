"""Schemas whose texts have a bounded length, so that every output can finish."""

from typing import Any

Schema = dict[str, Any]


def _object(properties: Schema, **more: Any) -> Schema:
    required = more.pop("required", list(properties))
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        **more,
    }


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SHORT = {"type": "string", "maxLength": 6}
POINT = _object({"x": DIGIT, "y": DIGIT})

BOUNDED: dict[str, Schema] = {
    "an enum": {"enum": ["red", "green", "blue", 3, None, True]},
    "a constant": _object({"kind": {"const": "sum"}, "version": {"const": 2}}),
    "a range of integers": {"type": "integer", "minimum": -120, "maximum": 4000},
    "numbers between bounds": _object(
        {"p": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25}, "n": DIGIT}
    ),
    "booleans and nothing": _object({"yes": {"type": "boolean"}, "no": {"type": "null"}}),
    "a short string": {"type": "string", "minLength": 2, "maxLength": 8},
    "a pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    "a pattern within an object": _object(
        {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "city": SHORT}
    ),
    "a date": _object({"day": {"type": "string", "format": "date"}}),
    "objects in objects": _object({"a": _object({"b": _object({"c": POINT})})}),
    "an array of a few items": {"type": "array", "items": DIGIT, "minItems": 1, "maxItems": 4},
    "an array of objects": _object({"points": {"type": "array", "items": POINT, "maxItems": 3}}),
    "a tuple": {
        "type": "array",
        "prefixItems": [SHORT, DIGIT, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "either of two objects": {
        "anyOf": [
            _object({"cat": {"const": True}, "lives": DIGIT}),
            _object({"dog": {"const": True}, "name": SHORT}),
        ]
    },
    "a string or a number": _object({"id": {"anyOf": [SHORT, DIGIT]}}),
    "optional properties": _object(
        {"a": DIGIT, "b": SHORT, "c": {"type": "boolean"}}, required=["b"]
    ),
    "a reference": {
        **_object({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}),
        "$defs": {"point": POINT},
    },
    "all of two": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 77}]},
    "names with quotes and spaces": _object({'a "b"': DIGIT, "c d": {"enum": ["'", '"', "\\"]}}),
    "other letters": _object({"größe": {"enum": ["groß", "klein", "日本", "👍"]}, "n": DIGIT}),
}

# Without characters that an ASCII tokenizer cannot encode.
IN_ASCII = {name: schema for name, schema in BOUNDED.items() if name != "other letters"}
