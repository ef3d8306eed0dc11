"""Normalises the origins that browsers send, so that an allowed one can match."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from server.settings.base import Accepts, Text

_UNUSABLE = re.compile(r"[\s\\]")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalised_origin(text: str) -> str:
    """Return an origin as browsers write it: lower case, no default port, no final slash.

    Raises ValueError for anything else than "*", "null" and an origin.
    """
    if text in ("*", "null"):
        return text
    parts = urlsplit(text)
    host, port = parts.hostname, parts.port
    if not parts.scheme or not host or "@" in parts.netloc or "*" in host or _UNUSABLE.search(text):
        raise ValueError("no origin")
    if parts.path not in ("", "/") or "?" in text or "#" in text:
        raise ValueError("more than an origin")
    host = host if host.isascii() else host.encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    is_default = port is None or port == _DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{host}" if is_default else f"{parts.scheme}://{host}:{port}"


Origins = Annotated[
    tuple[Annotated[Text, AfterValidator(normalised_origin)], ...],
    Accepts(
        "*, or origins without a path, such as https://chat.example.org or http://localhost:3000, "
        "as a list or one text with commas"
    ),
]
