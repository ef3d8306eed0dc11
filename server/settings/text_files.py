"""Reads text files that users write."""

from importlib.resources.abc import Traversable
from pathlib import Path

from server.settings.base import SettingsError


def read_text(file: Path | Traversable) -> str:
    """Read a UTF-8 file without its byte order mark; lines end in a newline character.

    Raises OSError, and SettingsError naming the line with bytes that are not UTF-8.
    """
    return decoded(file.read_bytes(), str(file))


def decoded(content: bytes, name: str) -> str:
    """Decode what was read from the file of this name, as `read_text` does."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError(
            f"{name}:{line}: found bytes that are not UTF-8; accepted: text in UTF-8"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_unicode(text: str) -> bool:
    """Whether a text holds no lone surrogate and no NUL, so that files and models can take it."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
