"""Rewrites a JSON schema so that llguidance enforces exactly what it says, or refuses it.

llguidance reads numbers as float64 with a rounding error, approximates some formats, and follows
references that never end. What cannot be rewritten raises GrammarError with the location.
"""

import math
from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from server.structured_output.string_formats import STRING_FORMATS

LIBRARY_OPTIONS = "x-guidance"  # the key of llguidance's own options inside a schema
SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
VALUES = ("const", "enum", "default", "examples")
_MINIMA = ("minimum", "exclusiveMinimum")
_MAXIMA = ("maximum", "exclusiveMaximum")
_EXACT_INT = 2**53  # float64 has every integer up to here
_INT64 = 2**63 - 1
_LEAST_INT64 = -(2**63 - 1024)  # the least that the library can use as a minimum
_MAX_STEPS = 64  # float64 neighbours whose spelling is tried
_MAX_MULTIPLE = 2**32  # the library multiplies in 32 bits
_NUMBER_TYPES = (int, float)


class GrammarError(ValueError):
    """A grammar that cannot be served; `at` is the JSON pointer of the part at fault, if known."""

    def __init__(self, message: str, *, at: str = "") -> None:
        super().__init__(message)
        self.at = at


def exact_schema(schema: Any) -> Any:
    """Return a schema that the library enforces exactly. Raises GrammarError."""
    rewriter = _Rewriter(_endless_references(schema))
    result = rewriter.schema(schema, "")
    _check_multiples(rewriter.multiples)
    if result is False:
        raise GrammarError("it allows no value that ends")
    return result


def escaped(name: str) -> str:
    """Return a name as one part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


class _Rewriter:
    def __init__(self, endless: frozenset[str]) -> None:
        """endless: references to schemas that no finite value matches."""
        self._endless = endless
        self.multiples: dict[Decimal, None] = {}

    def schema(self, schema: Any, at: str) -> Any:
        if not isinstance(schema, dict):
            return schema
        if LIBRARY_OPTIONS in schema:
            raise GrammarError(f"{LIBRARY_OPTIONS} is not accepted", at=at)
        if _key(schema.get("$ref")) in self._endless:
            return False
        _check_counted_keys(schema, at)
        parts = {key: self._part(key, v, f"{at}/{escaped(key)}") for key, v in schema.items()}
        return _with_format(parts, at)

    def _part(self, key: str, value: Any, at: str) -> Any:
        if key in ("const", "enum"):
            return _exact_value(value, at)
        if key in VALUES:
            return value
        if _is_number(value) and key in (*_MINIMA, *_MAXIMA):
            return _exact_bound(key, value, at)
        if _is_number(value) and key == "multipleOf":
            self.multiples[_exact_multiple(value, at)] = None
        if isinstance(value, list):
            return [self.schema(item, f"{at}/{i}") for i, item in enumerate(value)]
        if isinstance(value, dict) and key in SCHEMAS_BY_NAME:
            return {name: self.schema(v, f"{at}/{escaped(name)}") for name, v in value.items()}
        return self.schema(value, at)


def _check_counted_keys(schema: Mapping[str, Any], at: str) -> None:
    """Refuse minProperties above the required ones: the library counts a repeated key twice."""
    minimum, required = schema.get("minProperties"), schema.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    if isinstance(minimum, int) and minimum > num_required:
        raise GrammarError("minProperties above the number of required properties", at=at)


def _with_format(schema: dict[str, Any], at: str) -> dict[str, Any]:
    """Return the schema with a pattern in place of a format that the library approximates."""
    name, types = schema.get("format"), schema.get("type", "string")
    if not isinstance(name, str) or (types != "string" and "string" not in _list(types)):
        return schema
    if name == "unknown":  # the library's own name for any text
        raise GrammarError("the format 'unknown' is unknown", at=at)
    if name not in STRING_FORMATS:
        return schema
    pattern, max_length = STRING_FORMATS[name]
    result = {key: value for key, value in schema.items() if key != "format"}
    if "pattern" in result:
        result["allOf"] = [*_list(result.get("allOf")), {"pattern": pattern}]
    else:
        result["pattern"] = pattern
    if max_length is not None:
        given = result.get("maxLength")
        result["maxLength"] = min(max_length, given) if isinstance(given, int) else max_length
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBER_TYPES) and not isinstance(value, bool)


def _exact_value(value: Any, at: str) -> Any:
    """Return a value of const or enum whose numbers the library reads as they are meant."""
    if isinstance(value, dict):
        return {k: _exact_value(v, f"{at}/{escaped(k)}") for k, v in value.items()}
    if isinstance(value, list):
        return [_exact_value(item, f"{at}/{i}") for i, item in enumerate(value)]
    return _exact_number(value, at) if _is_number(value) else value


def _exact_number(value: float, at: str) -> float:
    if isinstance(value, int):
        if abs(value) <= _EXACT_INT or (abs(value) < 2**63 and int(float(value)) == value):
            return value
        raise _inexact(value, at)
    for towards in (math.inf, -math.inf):
        near = value
        for _ in range(_MAX_STEPS):
            if math.isfinite(near) and _as_the_library_reads(near) == value:
                return near
            near = math.nextafter(near, towards)
    raise _inexact(value, at)


def _exact_bound(key: str, value: float, at: str) -> float:
    """Return a bound; one beyond int64 becomes the bound of int64."""
    if isinstance(value, int):
        if key in _MINIMA and value <= -_INT64:
            return _LEAST_INT64
        if key in _MAXIMA and value >= _INT64:
            return _INT64
    if key.startswith("exclusive") and abs(value) >= _EXACT_INT:
        raise _inexact(value, at)  # the library adds 1 to it
    return _exact_number(value, at)


def _exact_multiple(value: float, at: str) -> Decimal:
    exact = Decimal(repr(value)).normalize()
    read, places = float(value), 0
    while read % 1 and places < 400:  # as the library counts decimal places
        read, places = read * 10, places + 1
    if not math.isfinite(read) or Decimal(int(read)).scaleb(-places).normalize() != exact:
        raise _inexact(value, at)
    return exact


def _check_multiples(values: Mapping[Decimal, None]) -> None:
    """Refuse multiples that the library could combine beyond 32 bits, where it wraps around."""
    if len(values) < 2:
        return
    places = max(max(0, -int(value.as_tuple().exponent)) for value in values)
    whole = [int(value.scaleb(places)) for value in values]
    if math.lcm(*whole) * max(whole) >= _MAX_MULTIPLE:
        raise GrammarError("its values of multipleOf have no common multiple of 32 bits")


def _inexact(value: float, at: str) -> GrammarError:
    return GrammarError(f"the number {value!r} cannot be enforced exactly", at=at)


def _as_the_library_reads(value: float) -> float:
    """Return the float64 that serde_json reads from the shortest spelling of a value."""
    number = Decimal(repr(value)).as_tuple()
    exponent = int(number.exponent)
    result = float(int("".join(map(str, number.digits))))
    while exponent < -308 and result:
        result, exponent = result / 1e308, exponent + 308
    power = float(f"1e{min(308, abs(exponent))}")
    result = result / power if exponent < 0 else result * power
    return -result if number.sign else result


def _key(reference: object) -> str:
    return reference if isinstance(reference, str) else ""


def _endless_references(schema: Any) -> frozenset[str]:
    """Return the references inside a schema to schemas that no finite value matches."""
    targets = {}
    for reference in set(_references(schema)):
        target = _resolved(schema, reference)
        if target is not None:
            targets[reference] = target
    endless = set(targets)
    while found := {r for r in endless if _can_end(targets[r], endless)}:
        endless -= found
    return frozenset(endless)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for key, value in schema.items():
            if key not in VALUES:
                yield from _references(value)


def _resolved(schema: Any, reference: str) -> Any:
    """Return the part of the schema that a reference names; None for other references."""
    if not reference.startswith("#"):
        return None
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict) and name in schema:
            schema = schema[name]
        elif isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return None
    return schema


def _can_end(schema: Any, endless: Set[str]) -> bool:
    """Whether a finite value may match, if none matches the endless references."""
    if not isinstance(schema, dict):
        return schema is not False
    if isinstance(schema.get("$ref"), str) and schema["$ref"] in endless:
        return False
    if not all(_can_end(part, endless) for part in _list(schema.get("allOf"))):
        return False
    for key in ("anyOf", "oneOf"):
        if schema.get(key) and not any(_can_end(part, endless) for part in _list(schema[key])):
            return False
    match schema.get("type"):
        case "object" | ["object"]:
            properties = schema.get("properties", {})
            return all(
                _can_end(properties.get(name), endless)
                for name in _list(schema.get("required"))
                if isinstance(properties, dict) and isinstance(name, str)
            )
        case "array" | ["array"]:
            prefix, least = _list(schema.get("prefixItems")), schema.get("minItems", 0)
            least = least if isinstance(least, int) else 0
            needed = prefix[:least] + [schema.get("items")] * (least > len(prefix))
            return all(_can_end(part, endless) for part in needed)
        case _:
            return True


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
