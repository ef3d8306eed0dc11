"""Patterns of the string formats that llguidance itself knows only roughly.

Each pattern matches valid strings only. It leaves out rare valid ones: leap seconds, the year 0,
lower-case letters in times, and very long names.
"""

from collections.abc import Mapping
from typing import NamedTuple


class StringFormat(NamedTuple):
    pattern: str
    max_length: int | None = None


_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    f"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
# At most 63 characters without a double hyphen; every such label of up to 32 is matched.
_LABEL = "[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,31}"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,7}}"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL_PART = rf"{_ATOM}(?:\.?{_ATOM}){{0,31}}"  # at most 63 characters, as a label

STRING_FORMATS: Mapping[str, StringFormat] = {
    "date": StringFormat(f"^{_DATE}$"),
    "time": StringFormat(f"^{_TIME}$"),
    "date-time": StringFormat(f"^{_DATE}T{_TIME}$"),
    "hostname": StringFormat(f"^{_HOSTNAME}$", 253),
    "email": StringFormat(f"^{_LOCAL_PART}@{_HOSTNAME}$", 254),
}
