"""Acceptance is estimated for each request, starting from that of all requests."""

import numpy as np
import pytest

from engine.proposers.acceptance import AcceptanceTable

PRIORS = (0.6, 0.5, 0.4)


def record(table: AcceptanceTable, row: int, tries: list[int], accepted: list[int]) -> None:
    table.record(np.array([row]), np.array([[tries, accepted]]).astype(float))


def chances(table: AcceptanceTable, row: int) -> list[float]:
    return list(table.chances()[row])


def test_a_new_table_has_the_priors() -> None:
    assert chances(AcceptanceTable(PRIORS), 0) == pytest.approx(PRIORS)


def test_columns_that_were_not_tried_keep_their_chances() -> None:
    table = AcceptanceTable(PRIORS)
    record(table, 0, [1, 1, 0], [1, 0, 0])
    first, second, third = chances(table, 0)
    assert first > PRIORS[0]
    assert second < PRIORS[1]
    assert third == pytest.approx(PRIORS[2])


def test_requests_differ_and_new_ones_start_from_all_of_them() -> None:
    table = AcceptanceTable(PRIORS)
    for row in (0, 1):
        table.clear(row)
    for _ in range(30):
        record(table, 0, [1, 1, 1], [1, 1, 1])
        record(table, 1, [1, 0, 0], [0, 0, 0])
    table.clear(2)
    assert chances(table, 1)[0] < 0.2
    assert chances(table, 0)[0] > 0.8
    assert 0.35 < chances(table, 2)[0] < 0.65


def test_a_reused_row_forgets_its_request() -> None:
    table = AcceptanceTable(PRIORS)
    for _ in range(30):
        record(table, 0, [1, 1, 1], [0, 0, 0])
    known = chances(table, 1)
    table.clear(0)
    assert chances(table, 0) == known


def test_without_rounds_chances_return_to_the_priors() -> None:
    table = AcceptanceTable(PRIORS)
    for _ in range(300):
        record(table, 0, [1, 1, 1], [0, 0, 0])
    table.pass_steps(10_000)
    assert chances(table, 0) == pytest.approx(PRIORS, abs=0.01)


def test_rounds_of_several_rows_and_steps_count_as_one_after_another() -> None:
    together, apart = AcceptanceTable(PRIORS), AcceptanceTable(PRIORS)
    rounds = [(0, [1, 1, 1]), (2, [1, 1, 0]), (0, [1, 0, 0]), (1, [1, 1, 1])]
    found = np.array([[tries, [0, 0, 0]] for _, tries in rounds]).astype(float)
    together.record(np.array([row for row, _ in rounds]), found)
    for row, tries in rounds:
        record(apart, row, tries, [0, 0, 0])
    for row in range(3):
        assert chances(together, row) == pytest.approx(chances(apart, row), abs=0.02)


def test_rows_are_made_as_needed() -> None:
    table = AcceptanceTable(PRIORS)
    record(table, 0, [1, 1, 1], [1, 1, 1])
    before = chances(table, 0)
    table.clear(300)
    assert chances(table, 0) == before
