"""Defines the base of all request bodies; it refuses unknown and unserved fields by name."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, ClassVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, InstanceOf, model_validator
from pydantic_core import PydanticCustomError

from server.errors.validation_errors import field_error, quote

_LONGEST_NAME = 64  # characters of an unknown field that are compared with the names of fields


class Body(BaseModel):
    """A JSON object with exact types: "5" is no number and 1 is no boolean, but 4.0 is 4.

    Null is the same as leaving a field out, whatever its name. UNSERVED maps fields that this
    server does not serve to their neutral values; these are accepted, others are refused. IGNORED
    fields do not affect the output and accept any value. ELSEWHERE maps common misplaced names to
    the path of the right field. ALIASES are names of fields that have another name in Python.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    IGNORED: ClassVar[frozenset[str]] = frozenset()
    ELSEWHERE: ClassVar[Mapping[str, str]] = {}
    ALIASES: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _drop_unserved_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            if value is None and not cls._needs(name):
                continue
            if name in cls._integer_fields():
                kept[name] = _as_integers(value)
            elif name in cls.model_fields or name in cls.ALIASES:
                kept[name] = value
            elif name in cls.UNSERVED:
                check_neutral(name, value, cls.UNSERVED[name])
            elif name not in cls.IGNORED:
                raise cls._unknown_field(name)
        return kept

    @classmethod
    def _needs(cls, name: str) -> bool:
        """Return whether a field must have a value."""
        field = cls.model_fields.get(name)
        return field.is_required() if field is not None else name in cls.ALIASES

    @classmethod
    @cache
    def _integer_fields(cls) -> frozenset[str]:
        """Return the names of the fields whose numbers are integers."""
        kinds = {name: _leaves(field.annotation) for name, field in cls.model_fields.items()}
        return frozenset(
            name for name, found in kinds.items() if int in found and float not in found
        )

    @classmethod
    def _unknown_field(cls, name: str) -> PydanticCustomError:
        served = list(cls.model_fields)
        near = get_close_matches(name[:_LONGEST_NAME], served, n=1, cutoff=0.0)
        nearest = cls.ELSEWHERE.get(name) or near[0]
        message = f"is an unknown field; the nearest valid name is '{nearest}'"
        return field_error("unknown_field", quote(name)[1:-1], message)


def _leaves(annotation: Any) -> set[Any]:
    """Return the types that an annotation is made of."""
    parts = get_args(annotation)
    return {annotation} if not parts else set().union(*map(_leaves, parts))


def _as_integers(value: object) -> object:
    """Return floats without a fraction as integers: clients of languages without them send 4.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, list):
        return value
    kinds = set(map(type, value))
    if list in kinds:
        return [_as_integers(item) for item in value]
    if float in kinds:
        return [int(x) if type(x) is float and x.is_integer() else x for x in value]
    return value


def check_neutral(name: str, value: object, neutral: tuple[object, ...]) -> None:
    """Raise field_error unless the value is null or one of the neutral ones."""
    if any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral
    ):
        return
    accepted = " or ".join(json.dumps(other) for other in (None, *neutral))
    message = f"is not supported; leave it out (accepted: {accepted}); found {quote(value)}"
    raise field_error("unserved_field", name, message)


def item_count(most: int, *, least: int | None = None) -> Any:
    """Return the bounds of a list for Annotated; its validation ends at the first wrong item."""
    return Field(min_length=least, max_length=most, fail_fast=True)


def _encodable(text: str) -> str:
    """Refuse lone surrogates, which JSON can contain but UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must be valid Unicode, without lone surrogates") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
JsonObject = InstanceOf[dict[str, Any]]  # is not copied; names in JSON are strings
