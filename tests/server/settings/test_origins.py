"""CORS origins are normalised, or refused where no browser sends them."""

import pytest
from pydantic import ValidationError

from server.settings.schema_server import ServerSection


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("*", "*"),
        ("null", "null"),
        ("https://b.example", "https://b.example"),
        ("https://b.example/", "https://b.example"),
        ("https://b.example:443", "https://b.example"),
        ("HTTPS://B.Example:443/", "https://b.example"),
        ("http://b.example:80", "http://b.example"),
        ("http://b.example:443", "http://b.example:443"),
        ("http://localhost:3000/", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ],
)
def test_an_origin_is_written_as_browsers_send_it(given: str, origin: str) -> None:
    assert ServerSection(cors_origins=(given,)).cors_origins == (origin,)


@pytest.mark.parametrize(
    "given",
    [
        "b.example",
        "localhost:3000",
        "//b.example",
        "https://b.example/page",
        "https://b.example?a=1",
        "https://b.example#a",
        "https://user@b.example",
        "https://*.example",
        "https://b.example:99999",
        "https://b .example",
        "https:\\\\b.example",
        "https://",
        "file:///",
    ],
)
def test_what_no_browser_sends_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="cors_origins"):
        ServerSection(cors_origins=(given,))
