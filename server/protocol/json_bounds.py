"""Bounds the depth and the number of values of JSON text before it is parsed."""

from typing import Any

import numpy as np

MAX_DEPTH = 200  # levels of lists and objects
MAX_VALUES = 1_000_000  # list items and object fields of a body, all levels together
MAX_NESTED_VALUES = 100_000  # of JSON that is a text of the body


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


def _structure(content: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes outside of strings."""
    if b"\\" in content:  # occurs in strings alone, and is removed with the character it escapes
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(content, np.uint8)
    is_inside = np.logical_xor.accumulate(characters == ord('"'))
    outside: np.ndarray[Any, np.dtype[np.uint8]] = characters[~is_inside]
    return outside
