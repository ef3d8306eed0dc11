"""Chances of a request's tokens follow its own rounds, by position or by length of the match."""

import numpy as np
import pytest

from engine.proposers.survival import LONGEST_MATCH, PRIOR_CHANCE, SurvivalTable

BLOCK = 3


def table() -> SurvivalTable:
    return SurvivalTable(block=BLOCK, lookup_tokens=7)


def test_a_new_request_has_the_chances_of_all() -> None:
    found = table()
    row = found.row_of(0)
    assert list(found.by_row[row, 0, :BLOCK]) == pytest.approx(
        list(PRIOR_CHANCE ** np.arange(1, BLOCK + 1))
    )
    assert list(found.of_all()) == pytest.approx(list(found.by_row[row, 0, :BLOCK]))
    assert not found.by_row[row, 0, BLOCK:].any()
    assert not found.by_row[row, 1].any()  # a match of no token


def test_a_longer_match_is_likelier_and_grows_along_the_lookup() -> None:
    found = table()
    by_match = found.by_row[found.row_of(0), 2:]
    assert (np.diff(by_match[:, 0]) >= 0).all()
    steps = by_match[0, 1:] / by_match[0, :-1]
    assert (np.diff(steps) >= -1e-12).all()


def test_rounds_count_at_the_next_refresh() -> None:
    found = table()
    row = found.row_of(0)
    before = found.by_row[row].copy()
    for _ in range(5):
        found.record(row, 0, BLOCK, 0)
        found.record(row, LONGEST_MATCH + 30, 7, 7)
    assert (found.by_row[row] == before).all()
    found.refresh(1)
    assert found.by_row[row, 0, 0] < before[0, 0]
    assert found.by_row[row, -1, 6] > before[-1, 6]


def test_rounds_of_a_request_that_ended_do_not_count_for_the_next_in_its_row() -> None:
    found, other = table(), table()
    row = found.row_of(0)
    for _ in range(20):
        found.record(row, 0, BLOCK, BLOCK)
    found.forget(0)
    assert found.row_of(1) == row
    other_row = other.row_of(1)
    for _ in range(5):
        found.record(row, 0, BLOCK, 0)
        other.record(other_row, 0, BLOCK, 0)
    found.refresh(1)
    other.refresh(1)
    # Only the rates over all requests differ, which weigh as much as three rounds.
    assert found.by_row[row, 0, 0] < 0.5
    assert found.by_row[row, 0, 0] == pytest.approx(other.by_row[other_row, 0, 0], abs=0.25)


def test_many_requests_have_rows_at_the_same_time() -> None:
    found = table()
    rows = [found.row_of(arrival) for arrival in range(100)]
    assert sorted(rows) == list(range(100))
    assert found.by_row[rows].any(axis=(1, 2)).all()


def test_confidences_stand_for_positions_that_were_not_verified() -> None:
    found = table()
    sure, unsure = found.row_of(0), found.row_of(1)
    for _ in range(10):
        found.record_block(sure, 1, 1, np.array([0.9, 0.95, 0.95]))
        found.record_block(unsure, 1, 1, np.array([0.9, 0.05, 0.05]))
    found.refresh(1)
    assert found.by_row[sure, 0, 2] > 0.6
    assert found.by_row[unsure, 0, 1] < 0.3


def test_a_rejection_says_nothing_about_later_positions() -> None:
    found, other = table(), table()
    for each in (found, other):
        each.row_of(0)
    found.record_block(0, 2, 0, np.array([0.9, 0.9, 0.01]))
    other.record_block(0, 2, 0, np.array([0.9, 0.9, 0.99]))
    found.refresh(1)
    other.refresh(1)
    assert found.by_row[0].tolist() == other.by_row[0].tolist()
