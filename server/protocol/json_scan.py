"""Scans JSON text: its depth, its number of values, and values that JSON cannot carry back.

Eight megabytes take milliseconds; regular expressions would take tenths of a second.
"""

from typing import Any

import numpy as np

MAX_DEPTH = 200  # levels of lists and objects
MAX_VALUES = 1_000_000  # list items and object fields of a body, all levels together
MAX_NESTED_VALUES = 100_000  # of JSON that is a text of the body
_FINITE_DIGITS = 256  # the largest double has 309 before its point
_CHUNK, _OVERLAP = 2**18, 300  # bytes that are looked at together

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def bounds_error(text: str, *, max_values: int = MAX_VALUES) -> str | None:
    """Return why JSON has too many levels or values; None if it is within the bounds.

    Counts brackets and commas outside of strings.
    """
    num_openings = text.count("[") + text.count("{")
    if num_openings <= MAX_DEPTH and text.count(",") + num_openings <= max_values:
        return None
    structure = _structure(text.encode("utf-8", "surrogatepass"))
    openings = (structure == ord("[")) | (structure == ord("{"))
    num_values = np.count_nonzero(structure == ord(",")) + np.count_nonzero(openings)
    if num_values > max_values:
        return f"must have at most {max_values} values in lists and objects"
    closings = (structure == ord("]")) | (structure == ord("}"))
    levels = np.cumsum(openings.astype(np.int8) - closings.astype(np.int8), dtype=np.int32)
    if np.max(levels, initial=0) > MAX_DEPTH:
        return f"must have at most {MAX_DEPTH} levels of lists and objects"
    return None


def may_hold_surrogates(text: str) -> bool:
    """Return whether half of a surrogate pair may occur, escaped or not; the values decide."""
    try:
        content = text.encode()
    except UnicodeEncodeError:
        return True
    if b"\\u" not in content:
        return False
    c: _Bytes = np.frombuffer(content, np.uint8)
    found = (c[:-2] == ord("\\")) & (c[1:-1] == ord("u")) & ((c[2:] | 32) == ord("d"))
    return bool(found.any())


def may_hold_infinite(text: str) -> bool:
    """Return whether a number may be NaN or infinite, by its name, exponent or many digits."""
    if "NaN" in text or "Infinity" in text:
        return True
    characters = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    starts = range(0, len(characters), _CHUNK)
    return any(_may_overflow(characters[i : i + _CHUNK + _OVERLAP]) for i in starts)


def _may_overflow(c: _Bytes) -> bool:
    """Return whether an exponent of three digits or a very long number begins."""
    is_digit = c - np.uint8(ord("0")) < 10
    is_exponent = (c | 32) == ord("e")
    three_digits = is_digit[:-2] & is_digit[1:-1] & is_digit[2:]
    if (is_exponent[:-3] & three_digits[1:]).any():
        return True
    if (is_exponent[:-4] & (c[1:-3] == ord("+")) & three_digits[2:]).any():
        return True
    runs, length = is_digit, 1  # where as many digits begin
    while length < _FINITE_DIGITS and runs.any():
        runs = runs[:-length] & runs[length:]
        length *= 2
    return bool(runs.any())


def _structure(content: bytes) -> _Bytes:
    """Return the bytes outside of strings."""
    if b"\\" in content:  # occurs in strings alone, and is removed with the character it escapes
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(content, np.uint8)
    is_inside = np.logical_xor.accumulate(characters == ord('"'))
    outside: _Bytes = characters[~is_inside]
    return outside
