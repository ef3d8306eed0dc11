"""Incremental counts equal those of the whole text."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduler.token_counts import TokenCounts


def counts_of(history: TokenCounts, token_ids: Sequence[int]) -> dict[int, int]:
    ids, counts = history.follow(token_ids)
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=300),
    st.integers(0, 300),
    st.lists(st.integers(1, 40), max_size=12),
)
def test_at_any_length_it_has_every_token_and_its_number_in_the_output(
    text: list[int], num_prompt: int, steps: list[int]
) -> None:
    history, length = TokenCounts(num_prompt=num_prompt), 0
    for step in steps:
        length = min(len(text), length + step)
        expected_counts = Counter(text[num_prompt:length])
        expected = {token_id: expected_counts[token_id] for token_id in text[:length]}
        assert counts_of(history, text[:length]) == expected


class Once(list[int]):
    """A text of which no token is read twice."""

    def __init__(self, *tokens: int) -> None:
        super().__init__(tokens)
        self.seen: set[int] = set()

    def __getitem__(self, position: int) -> int:  # type: ignore[override]
        assert position not in self.seen
        self.seen.add(position)
        return super().__getitem__(position)


def test_what_was_counted_is_not_read_again() -> None:
    history, text = TokenCounts(num_prompt=2), Once(5, 7, 5)
    assert counts_of(history, text) == {5: 1, 7: 0}
    text += [7, 7, 9]
    assert counts_of(history, text) == {5: 1, 7: 2, 9: 1}
    assert counts_of(history, text) == {5: 1, 7: 2, 9: 1}


def test_a_text_never_becomes_shorter() -> None:
    history = TokenCounts(num_prompt=0)
    history.follow([1, 2])
    with pytest.raises(AssertionError, match="1 tokens, 2 counted"):
        history.follow([1])
