"""Classes of regexes are ASCII, as in xgrammar."""

import pytest

from server.structured_output.ascii_classes import ascii_classes, ascii_lark


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\d{4}", "[0-9]{4}"),
        (r"[\d.]+", "[0-9.]+"),
        (r"\w\s", r"[0-9A-Za-z_][ \t\n\r\f\v]"),
        (r"\D", "[^0-9]"),
        (r"[a\D]", "[a[^0-9]]"),
        (r"\\d", r"\\d"),
        (r"(?u)\d", r"\d"),
        (r"\.[0-9]", r"\.[0-9]"),
    ],
)
def test_a_class_becomes_ascii_unless_unicode_is_requested(pattern: str, expected: str) -> None:
    assert ascii_classes(pattern) == expected


def test_only_the_regexes_of_a_lark_grammar_change() -> None:
    grammar = 'start: "a/\\\\d/" NUM // \\d\nNUM: /\\d+/\n'
    assert ascii_lark(grammar) == 'start: "a/\\\\d/" NUM // \\d\nNUM: /[0-9]+/\n'
