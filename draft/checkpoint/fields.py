"""Typed look-up of configuration fields: every refusal names field, found and accepted."""

from collections.abc import Mapping, Sequence

from draft.errors import DraftLoadError

_NESTS = ("dspark_config", "dflash_config")
_PREFIX = "dspark_"


class Fields:
    """A config.json as typed fields. A field that is null counts as absent.

    Looked for at the top level, then in dspark_config, then in dflash_config, then with the
    prefix dspark_: other engines write the same names in these places.
    """

    def __init__(self, values: Mapping[str, object], *, within: str = "") -> None:
        """within: the name of the object that holds these fields, for messages."""
        self._within = within
        nests = (values.get(nest) for nest in _NESTS)
        self._places: list[Mapping[str, object]] = [
            values,
            *(nest for nest in nests if isinstance(nest, Mapping)),
        ]

    def label(self, name: str) -> str:
        """How a message names a field: with the objects that it lies in."""
        return f"{self._within}.{name}" if self._within else name

    def find(self, name: str) -> object | None:
        """The raw value; None when it is nowhere."""
        for place in self._places:
            if place.get(name) is not None:
                return place[name]
        return self._places[0].get(_PREFIX + name)

    def section(self, name: str) -> "Fields | None":
        """A nested object; None when absent. Its fields bear the names of their own level."""
        found = self.find(name)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise DraftLoadError(self.label(name), found=repr(found), accepted="an object")
        return Fields(found, within=self.label(name))

    def integer(self, name: str, *, minimum: int, default: int | None = None) -> int:
        found = self._found(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < minimum:
            raise DraftLoadError(
                self.label(name), found=_shown(found), accepted=f"an integer >= {minimum}"
            )
        return found

    def positive_number(self, name: str) -> float:
        found = self.find(name)
        if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
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
        """A list whose items are all accepted; None when absent."""
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
