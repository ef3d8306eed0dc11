"""Scans JSON texts without converting their values: every text that a grammar allows is read.

A number may be of any size, and values may be nested to any depth. Lone surrogates are refused.
"""

import json
import re

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
        (?P<mark>[{}\[\],:])
      | (?P<text>"(?:
            [^"\\\x00-\x1f] | \\["\\/bfnrt] | \\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}
          | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
        )*")
      | (?P<plain>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)
    )""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "[": "]"}


def value_end(text: str, at: int = 0) -> int:
    """Return where the JSON value at a position ends. Raises ValueError for invalid JSON."""
    open_marks: list[str] = []
    while True:
        token = _token(text, at)
        at = token.end()
        if token["mark"] in _CLOSING:
            open_marks.append(token["mark"])
            if (closed := _close(text, at, token["mark"])) is None:
                at = _key_end(text, at, open_marks)
                continue
            at = closed
            open_marks.pop()
        elif token["mark"] is not None:
            raise ValueError(f"found {token['mark']} in place of a value")
        # After a value: close what ends here, then go to the next value.
        while open_marks:
            token = _token(text, at)
            if token["mark"] == ",":
                at = _key_end(text, token.end(), open_marks)
                break
            if token["mark"] != _CLOSING[open_marks[-1]]:
                raise ValueError("found no comma and no end after a value")
            at = token.end()
            open_marks.pop()
        else:
            return at


def members(text: str, at: int = 0) -> tuple[dict[str, str], int]:
    """Return the members of the JSON object at a position as texts, and where it ends.

    Of members with the same name the last one counts. Raises ValueError for anything else.
    """
    end = value_end(text, at)
    token = _token(text, at)
    if token["mark"] != "{":
        raise ValueError("found a JSON value that is no object")
    found: dict[str, str] = {}
    at = token.end()
    while (token := _token(text, at))["mark"] != "}":
        name = _token(text, token.end()) if token["mark"] == "," else token
        at = _token(text, name.end()).end()
        value_at, at = at, value_end(text, at)
        found[json.loads(name[0])] = text[value_at:at].strip()
    return found, end


def _token(text: str, at: int) -> re.Match[str]:
    token = _TOKEN.match(text, at)
    if token is None:
        raise ValueError(f"found no JSON at character {at}")
    return token


def _close(text: str, at: int, mark: str) -> int | None:
    """Return where an object or array ends that is empty; None for any other."""
    token = _token(text, at)
    return token.end() if token["mark"] == _CLOSING[mark] else None


def _key_end(text: str, at: int, open_marks: list[str]) -> int:
    """Return where the next value may begin: in an object after its name and colon."""
    if open_marks[-1] == "[":
        return at
    name = _token(text, at)
    colon = _token(text, name.end())
    if name["text"] is None or colon["mark"] != ":":
        raise ValueError("found no name of a member in an object")
    return colon.end()
