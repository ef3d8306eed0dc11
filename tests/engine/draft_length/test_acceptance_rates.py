"""Acceptance rates from earlier rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.draft_length.acceptance_rates import PRIOR_CHANCE, AcceptanceRates


def test_without_rounds_the_survival_is_the_priors() -> None:
    survival = AcceptanceRates(num_positions=3).survival()
    assert survival == pytest.approx([PRIOR_CHANCE, PRIOR_CHANCE**2, PRIOR_CHANCE**3])


def test_many_rounds_determine_the_survival() -> None:
    history = AcceptanceRates(num_positions=3)
    for i in range(2000):
        history.record(3, (0, 1, 1, 3)[i % 4])
    assert history.survival() == pytest.approx([3 / 4, 1 / 4, 1 / 4], abs=0.03)


def test_rounds_of_fewer_drafts_count_for_the_positions_that_they_had() -> None:
    history = AcceptanceRates(num_positions=3)
    for _ in range(2000):
        history.record(1, 1)
    first, second, third = history.survival()
    assert first > 0.98
    assert second / first == pytest.approx(PRIOR_CHANCE)
    assert third / second == pytest.approx(PRIOR_CHANCE)


def test_the_latest_rounds_count_most() -> None:
    history = AcceptanceRates(num_positions=1)
    for _ in range(3000):
        history.record(1, 0)
    for _ in range(400):
        history.record(1, 1)
    assert history.survival()[0] > 0.7


def test_without_rounds_the_survival_returns_to_the_prior() -> None:
    history = AcceptanceRates(num_positions=1)
    for _ in range(3000):
        history.record(1, 0)
    assert history.survival()[0] < 0.02
    for _ in range(10_000):
        history.pass_step()
    assert history.survival()[0] > 0.9 * PRIOR_CHANCE


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=60))
def test_chances_are_chances_and_never_rise(rounds: list[tuple[int, int]]) -> None:
    history = AcceptanceRates(num_positions=4)
    for num_drafts, num_accepted in rounds:
        history.record(num_drafts, min(num_drafts, num_accepted))
        history.pass_step()
    survival = history.survival()
    assert all(0 <= chance <= 1 for chance in survival)
    assert list(survival) == sorted(survival, reverse=True)
