"""Regexes that end a text: the first complete match, the longest of those that end with it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.text.stop_regex import RegexSearch, StopRegex

PATTERNS = [
    "and|or",
    r"[.!?]\s*$",
    r"\d{2,3}-\d",
    "^ab|b+c",
    "a.*b",
    "(?i)AB",
    "(ab|a)*c",
    "a(?:b|c)?d{0,2}e",
    "[^a-c]x?",
    "(?:(?:a|b){2}){2}",
    r"\Aab\Z",
    "(?s).b",
    "a$|b",
    "b+?c",
]


def first_match(text: str, pattern: str) -> tuple[int, int] | None:
    """Return (start, end) by trying every end and every start with Python's matcher."""
    regex = re.compile(pattern, re.ASCII)
    spans = ((start, end) for end in range(1, len(text) + 1) for start in range(end))
    return next((span for span in spans if regex.fullmatch(text[: span[1]], span[0])), None)


def found(text: str, pattern: str) -> tuple[int, int] | None:
    search = RegexSearch(StopRegex.compile(pattern))
    for end, char in enumerate(text, start=1):
        if length := search.step(char):
            return end - length, end
        assert 0 <= search.num_undecided <= end
    return None


@settings(deadline=None, max_examples=400)
@given(text=st.text("abcdeonrx.12- \nAB", max_size=14), pattern=st.sampled_from(PATTERNS))
def test_the_first_complete_match_is_found(text: str, pattern: str) -> None:
    assert found(text, pattern) == first_match(text, pattern)


@settings(deadline=None)
@given(text=st.text("abcx", min_size=1, max_size=10), pattern=st.sampled_from(PATTERNS))
def test_a_match_begins_within_the_undecided_characters(text: str, pattern: str) -> None:
    """So text before them can be sent."""
    search = RegexSearch(StopRegex.compile(pattern))
    undecided = 0
    for char in text:
        length = search.step(char)
        assert length <= undecided + 1
        undecided = search.num_undecided
        if length:
            return


def test_classes_are_ascii_unless_the_pattern_begins_with_u() -> None:
    assert found("x٣", r"\d") is None
    assert found("x٣", r"(?u)\d") == (1, 2)


def test_a_skipped_character_is_counted_and_not_matched() -> None:
    search = RegexSearch(StopRegex.compile("^ab"))
    assert (search.skip(), search.step("a"), search.skip(), search.step("b")) == (0, 0, 0, 3)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("[a", "unterminated"),
        ("a*", "empty text"),
        ("", "empty text"),
        ("^", "empty text"),
        (r"\bfoo", "word boundary"),
        (r"(a)\1", "groupref"),
        ("(?=a)b", "assert"),
        ("a++", "possessive_repeat"),
        ("$a", "end anchor"),
        ("(?m)^a", "MULTILINE"),
        ("(((a{500}){500}){500})", "too large"),
        ("(?:){0,100000000}", "too large"),
        ("(?:a(?:" + "|" * 16_000 + ")){300}b", "too large"),
        ("(" * 2000 + "a" + ")" * 2000, "nested too deeply"),
    ],
)
def test_what_cannot_be_searched_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StopRegex.compile(pattern)


def test_equal_alternatives_are_one_state() -> None:
    assert found("xaab", "(?:a(?:|||||||)){2}b") == (1, 4)
    regex = StopRegex.compile("(?:a(?:|||||||)){2}b")
    assert all(len(after) == 1 for after in regex.after if after)


def test_the_classes_of_a_group_are_those_of_its_flag() -> None:
    assert found("é", "(?u:é)") == found("é", r"(?u:\w)") == (0, 1)
    assert found("é", r"(?a:\w)") is None


def test_the_time_of_a_search_is_linear_in_the_text() -> None:
    """Python's matcher would try each of the splits of a million a's."""
    search = RegexSearch(StopRegex.compile("(a*)*b"))
    assert not any(search.step("a") for _ in range(20_000))
    assert search.step("b") == 20_001
