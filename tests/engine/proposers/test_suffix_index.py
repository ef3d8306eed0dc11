"""The suffix index against a search of the whole text."""

import random

from hypothesis import given
from hypothesis import strategies as st

from engine.proposers.suffix_index import SuffixIndex


def longest_repeated(tokens: list[int]) -> int:
    """Search all suffixes: tokens of the longest that occurs earlier, overlaps included."""
    n = len(tokens)
    return next(
        (
            length
            for length in range(n - 1, 0, -1)
            if any(tokens[end - length : end] == tokens[n - length :] for end in range(length, n))
        ),
        0,
    )


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(1, 5), max_size=40))
def test_the_match_is_the_longest_suffix_that_occurred_before(
    tokens: list[int], chunks: list[int]
) -> None:
    index, done = SuffixIndex(), 0
    for chunk in [*chunks, len(tokens)]:
        index.extend(tokens[done : done + chunk])
        done = min(len(tokens), done + chunk)
        found = index.match
        assert found.length == longest_repeated(tokens[:done])
        assert tokens[found.end - found.length : found.end] == tokens[done - found.length : done]
        assert found.length == 0 or found.end < done
    assert len(index) == len(tokens)


def test_the_latest_occurrence_is_continued() -> None:
    index = SuffixIndex()
    index.extend([1, 2, 7, 1, 2, 8, 1, 2])
    assert index.match.length == 2
    assert index.continuation(1) == [8]


def test_a_match_that_reaches_the_end_continues_periodically() -> None:
    index = SuffixIndex()
    index.extend([5, 1, 2, 3, 1, 2, 3])
    assert index.continuation(8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_new_text_has_no_continuation() -> None:
    index = SuffixIndex()
    index.extend([1, 2, 3])
    assert index.match.length == 0
    assert index.continuation(4) == []


def longest_inside(text: list[int], other: list[int]) -> int:
    """Search all suffixes of `other`: tokens of the longest that occurs in `text`."""
    return next(
        (
            length
            for length in range(len(other), 0, -1)
            if any(
                text[start : start + length] == other[len(other) - length :]
                for start in range(len(text) - length + 1)
            )
        ),
        0,
    )


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), max_size=6)), max_size=14),
)
def test_another_text_is_matched_while_both_grow(parts: list[tuple[bool, list[int]]]) -> None:
    """A match found earlier may be a shorter one of the longest after the index has grown."""
    index, text, other = SuffixIndex(), list[int](), list[int]()
    state = length = 0
    for is_other, tokens in parts:
        if not is_other:
            index.extend(tokens)
            text += tokens
            continue
        for token in tokens:
            before = length
            state, length = index.advance(state, length, [token])
            other.append(token)
            assert length <= before + 1
            tail = other[len(other) - length :]
            found = index.after(state, 3)
            ends = [i for i in range(length, len(text) + 1) if text[i - length : i] == tail]
            assert found in [text[end : end + 3] for end in ends]
    index_whole = SuffixIndex()
    index_whole.extend(text)
    assert index_whole.advance(0, 0, other)[1] == longest_inside(text, other)


def test_states_and_transitions_grow_linearly() -> None:
    source = random.Random(0)
    tokens = [source.randrange(12) for _ in range(4000)]
    index = SuffixIndex()
    index.extend(tokens)
    assert len(index._lengths) <= 2 * len(tokens)
    assert sum(map(len, index._transitions)) <= 3 * len(tokens)
