"""Makes the classes of regexes ASCII: \\d, \\w and \\s, as in xgrammar and in JSON schemas here."""

import re

_UNICODE = "(?u)"  # at the beginning of a pattern: its classes are Unicode's
_MEMBERS = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}
_LARK_PARTS = re.compile(
    r'"(?:[^"\\]|\\.)*"'  # a string
    r"|//[^\n]*"  # a comment
    r"|/(?P<regex>(?:[^/\\\n]|\\.)+)/"
)


def ascii_classes(pattern: str) -> str:
    """Return the pattern with ASCII classes; one that begins with (?u) without that mark alone."""
    if pattern.startswith(_UNICODE):
        return pattern[len(_UNICODE) :]
    result: list[str] = []
    depth = 0  # of nested [...]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            result.append(_class(pattern[at : at + 2], is_inside=depth > 0))
            at += 2
            continue
        depth += (char == "[") - (char == "]" and depth > 0)
        result.append(char)
        at += 1
    return "".join(result)


def ascii_lark(grammar: str) -> str:
    """Return a Lark grammar whose regexes have ASCII classes."""

    def replaced(match: re.Match[str]) -> str:
        regex = match["regex"]
        return match[0] if regex is None else f"/{ascii_classes(regex)}/"

    return _LARK_PARTS.sub(replaced, grammar)


def _class(escape: str, *, is_inside: bool) -> str:
    members = _MEMBERS.get(escape[1].lower())
    if members is None:
        return escape
    if escape[1].isupper():
        return f"[^{members}]"
    return members if is_inside else f"[{members}]"
