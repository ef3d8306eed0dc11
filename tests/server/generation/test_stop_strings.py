"""Stop strings: scanner and output text find the same stop for any tokenization."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.generation.stop_strings import (
    OutputText,
    StopMatch,
    StopSearch,
    StopStringScanner,
    StopTable,
)
from server.text.stop_regex import StopRegex
from tests.support.server.byte_text import BOS, EOS, byte_codec

CODEC = byte_codec()
TEXT = "ab日本👍e\u0301 ab"


def first_stop(text: str, stops: list[str]) -> tuple[str, str] | None:
    """(text before the stop, the stop) by plain search: the earliest end, then the longest."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end - len(stop)], stop
    return None


def scan(data: bytes, stops: list[str]) -> tuple[int, str] | None:
    """Return (index of the token that completes a stop, the stop) from the scanner."""
    scanner = StopStringScanner(decoder=CODEC.decoder(), table=StopTable(stops))
    for number, token_id in enumerate(data):
        stop = scanner.feed(token_id)
        if stop is not None:
            return number, stop
    return None


def shown(data: bytes, stops: list[str]) -> list[str]:
    output = OutputText(decoder=CODEC.decoder(), table=StopTable(stops))
    return [output.push(token_id) for token_id in data] + [output.flush()]


@pytest.mark.parametrize(
    "stop", sorted({TEXT[i:j] for i in range(len(TEXT)) for j in range(i + 1, len(TEXT) + 1)})
)
def test_a_stop_at_any_position_ends_the_output_there(stop: str) -> None:
    before = TEXT[: TEXT.index(stop)]
    assert "".join(shown(TEXT.encode(), [stop])) == before
    found = scan(TEXT.encode(), [stop])
    assert found == (len((before + stop).encode()) - 1, stop)


@settings(deadline=None)
@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
)
def test_the_first_complete_stop_wins_and_the_longest_of_equals(
    text: str, stops: list[str]
) -> None:
    expected = first_stop(text, stops)
    found = scan(text.encode(), stops)
    assert "".join(shown(text.encode(), stops)) == (expected[0] if expected else text)
    assert (found and found[1]) == (expected and expected[1])


@settings(deadline=None)
@given(
    text=st.text("ab日👍", max_size=20),
    stops=st.lists(st.text("ab日👍", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_text_of_a_stop_is_never_emitted(text: str, stops: list[str]) -> None:
    pieces = shown(text.encode(), stops)
    final = "".join(pieces)
    for end in range(len(pieces)):
        assert final.startswith("".join(pieces[:end]))


@settings(deadline=None)
@given(
    pieces=st.lists(st.text("ab", max_size=6), max_size=8),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_tokens_of_many_characters_find_the_same_stop(pieces: list[str], stops: list[str]) -> None:
    search, read = StopSearch(StopTable(stops)), ""
    for piece in pieces:
        match = search.feed(piece)
        read += piece
        expected = first_stop(read, stops)
        assert (match is None) == (expected is None)
        if match and expected:
            assert match.stop == expected[1]
            end = len(read) - len(piece) + match.end
            assert read[: end - len(match.stop)] == expected[0]
            return
        assert search.num_undecided == max(
            n
            for n in range(6)
            if n == 0 or any(s.startswith(read[-n:]) for s in stops if n <= len(read))
        )


def test_withheld_text_is_emitted_when_it_is_no_stop() -> None:
    assert shown(b"a END", ["END!"]) == ["a", " ", "", "", "", "END"]
    assert shown(b"ENDS", ["END!"]) == ["", "", "", "ENDS", ""]


def test_no_text_is_emitted_after_a_stop() -> None:
    output = OutputText(decoder=CODEC.decoder(), table=StopTable(["b"]))
    assert [output.push(token_id) for token_id in b"abcd"] == ["a", "", "", ""]
    assert output.flush() == ""


def test_the_complete_one_of_a_hundred_long_stops_is_found() -> None:
    stops = [f"{'a' * 150}-{n}." for n in range(100)]
    search = StopSearch(StopTable(stops))
    assert [search.feed("a") for _ in range(2000)] == [None] * 2000
    assert search.num_undecided == 150
    assert search.feed("-42. and more") == StopMatch(stops[42], 154, 4)


HIDDEN = CODEC.skipped_tokens(eos_token_ids=[EOS])  # their texts are "256" and "257"


def shown_and_stop(token_ids: list[int], stops: list[str]) -> tuple[str, str | None]:
    """Return the text with hidden special tokens, and the stop that the scanner finds."""
    table = StopTable(stops, hidden=HIDDEN)
    scanner = StopStringScanner(decoder=CODEC.decoder(), table=table)
    output = OutputText(decoder=CODEC.decoder(), table=table)
    text = "".join(map(output.push, token_ids)) + output.flush()
    return text, next((stop for stop in map(scanner.feed, token_ids) if stop), None)


@pytest.mark.parametrize(
    ("token_ids", "stops", "text", "stop"),
    [
        ([*b"ab", EOS, *b"c"], ["257"], "ab", "257"),
        ([*b"ab257c"], ["257"], "ab", "257"),  # the same text in other tokens
        ([*b"ab", EOS, 10, *b"c"], ["257\n"], "ab", "257\n"),
        ([*b"ab", EOS, *b"c"], ["257\n", "c"], "ab", "c"),  # withheld, then no stop
        ([*b"ab", EOS, *b"c"], ["b257c"], "a", "b257c"),
        ([*b"a", BOS, EOS, *b"c"], ["256257"], "a", "256257"),
        ([*b"ab", BOS, *b"c"], ["257"], "abc", None),
        ([*b"a", EOS, *b"b"], ["ab"], "", "ab"),  # a token of no stop is not in the text
    ],
)
def test_a_stop_may_contain_special_tokens_that_the_text_leaves_out(
    token_ids: list[int], stops: list[str], text: str, stop: str | None
) -> None:
    assert shown_and_stop(token_ids, stops) == (text, stop)


def test_a_special_token_stops_only_from_min_tokens_on() -> None:
    table = StopTable(["257"], hidden=HIDDEN)
    scanner = StopStringScanner(decoder=CODEC.decoder(), table=table, min_tokens=3)
    assert [scanner.feed(token_id) for token_id in (EOS, EOS, EOS)] == [None, None, "257"]


@settings(deadline=None)
@given(
    pieces=st.lists(st.text("ab1 ", max_size=4), max_size=8),
    stops=st.lists(st.text("ab", min_size=1, max_size=3), max_size=2),
)
def test_strings_and_regexes_are_searched_together(pieces: list[str], stops: list[str]) -> None:
    """The earliest end wins, then the longest, then a string."""
    text, regexes = "".join(pieces), [r"b\d*1", "a[^a]+a"]
    table = StopTable(stops, regexes=[StopRegex.compile(each) for each in regexes])
    output = OutputText(decoder=CODEC.decoder(), table=table)
    patterns = [*map(re.escape, stops), *regexes]
    spans = [
        (end, start, stop)
        for end in range(1, len(text) + 1)
        for start in range(end)
        for stop, pattern in zip([*stops, *regexes], patterns, strict=True)
        if re.fullmatch(pattern, text[start:end])
    ]
    expected = next(iter(spans), None)
    scanner = StopStringScanner(decoder=CODEC.decoder(), table=table)
    matched = next((s for s in map(scanner.feed, text.encode()) if s), None)
    sent = [output.push(token_id) for token_id in text.encode()] + [output.flush()]
    assert "".join(sent) == (text[: expected[1]] if expected else text)
    assert matched == (expected[2] if expected else None)


def test_a_hidden_special_token_does_not_hide_a_match() -> None:
    table = StopTable(["257!"], hidden=HIDDEN, regexes=[StopRegex.compile("ab")])
    output = OutputText(decoder=CODEC.decoder(), table=table)
    assert "".join(map(output.push, [*b"xa", EOS, *b"bc"])) == "x"
