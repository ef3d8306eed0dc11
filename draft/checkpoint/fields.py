"""Reads typed fields of a config.json; errors name the field, found and accepted values."""

import sys
from collections.abc import Mapping, Sequence

from draft.errors import DraftLoadError

_NESTS = ("dspark_config", "dflash_config")
_PREFIX = "dspark_"
_TOO_LARGE = 2**31  # for a size


class Fields:
    """Reads the fields of a config.json. A field that is null counts as absent.

    A field is looked up at the top level, in dspark_config, in dflash_config, and with the prefix
    dspark_: other engines write the same names in these places.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        *,
        within: str = "",
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        """within: the name of the object that contains these fields, for messages.

        defaults: values of absent fields.
        """
        self._within = within
        self._defaults = defaults or {}
        nests = (values.get(nest) for nest in _NESTS)
        self._places: list[Mapping[str, object]] = [
            values,
            *(nest for nest in nests if isinstance(nest, Mapping)),
        ]

    def label(self, name: str) -> str:
        """Return the field's name for messages, with the objects that contain it."""
        return f"{self._within}.{name}" if self._within else name

    def find(self, name: str) -> object | None:
        """Return the raw value, or its default; None if the field is absent."""
        for place in self._places:
            if place.get(name) is not None:
                return place[name]
        prefixed = self._places[0].get(_PREFIX + name)
        return self._defaults.get(name) if prefixed is None else prefixed

    def section(self, name: str) -> "Fields | None":
        """Return a nested object's fields; None if absent."""
        found = self.find(name)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise DraftLoadError(self.label(name), found=repr(found), accepted="an object")
        return Fields(found, within=self.label(name))

    def integer(self, name: str, *, minimum: int, default: int | None = None) -> int:
        found = self._found(name, default)
        if type(found) is not int or not minimum <= found < _TOO_LARGE:
            raise DraftLoadError(
                self.label(name), found=_shown(found), accepted=f"an integer >= {minimum}"
            )
        return found

    def positive_number(self, name: str) -> float:
        found = self.find(name)
        if (
            isinstance(found, bool)
            or not isinstance(found, int | float)
            or not 0 < found <= sys.float_info.max
        ):
            raise DraftLoadError(self.label(name), found=_shown(found), accepted="a number > 0")
        return float(found)

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        found = self._found(name, default)
        if not isinstance(found, bool):
            raise DraftLoadError(self.label(name), found=_shown(found), accepted="true or false")
        return found

    def choice(self, name: str, accepted: Sequence[str], *, default: str | None = None) -> str:
        found = self._found(name, default)
        if not isinstance(found, str) or found not in accepted:
            raise DraftLoadError(
                self.label(name), found=_shown(found), accepted=" or ".join(accepted)
            )
        return found

    def integers(self, name: str) -> tuple[int, ...]:
        found = self.find(name)
        if not isinstance(found, list) or any(type(item) is not int for item in found):
            raise DraftLoadError(
                self.label(name), found=_shown(found), accepted="a list of integers"
            )
        return tuple(found)

    def choices(self, name: str, accepted: Sequence[str]) -> tuple[str, ...] | None:
        """Return a list whose items are all accepted; None if absent."""
        found = self.find(name)
        if found is None:
            return None
        if not isinstance(found, list) or any(item not in accepted for item in found):
            wanted = "a list of " + " or ".join(accepted)
            raise DraftLoadError(self.label(name), found=_shown(found), accepted=wanted)
        return tuple(found)

    def _found(self, name: str, default: object | None) -> object | None:
        found = self.find(name)
        return default if found is None else found


def _shown(found: object | None) -> str | None:
    return None if found is None else repr(found)
