"""Predicted seconds of a step, from measured points."""

import pytest

from engine.draft_length.cost_model import Curve, StepCosts


def test_a_curve_is_linear_between_points_and_continues_after_the_last() -> None:
    curve = Curve.through({1: 2.0, 5: 4.0, 9: 12.0})
    sizes = (0, 1, 3, 5, 7, 9, 11)
    assert [curve.at(size) for size in sizes] == [2.0, 2.0, 3.0, 4.0, 8.0, 12.0, 16.0]


def test_a_curve_of_one_point_is_constant() -> None:
    assert Curve.through({4: 3.0}).at(400) == 3.0


def test_a_disturbed_point_costs_no_more_than_a_larger_size() -> None:
    assert Curve.through({1: 9.0, 2: 3.0, 4: 4.0}).at(1) == 3.0


def test_context_costs_time_per_sequence_and_per_row() -> None:
    costs = StepCosts(
        passes=Curve.through({1: 1.0}),
        drafts=Curve.through({1: 0.5}),
        context_per_sequence=0.01,
        context_per_row=0.001,
        context_per_draft=0.02,
    )
    found = costs.pass_seconds(num_sequences=2, num_rows=8, context=100)
    assert found == pytest.approx(1.0 + 2.0 + 0.8)
    assert costs.draft_seconds(num_sequences=2, context=100) == pytest.approx(0.5 + 4.0)
    assert costs.draft_seconds(num_sequences=0, context=100) == 0.0


def test_a_replayed_pass_costs_its_whole_capture_size() -> None:
    costs = StepCosts(
        passes=Curve.through({3: 1.0, 6: 2.0, 12: 4.0}),
        drafts=Curve.through({1: 1.0, 2: 2.0, 4: 4.0}),
        capture_sizes=(1, 2, 4),
        width=3,
    )
    assert costs.pass_seconds(num_sequences=1, num_rows=2, context=0) == 1.0
    assert costs.pass_seconds(num_sequences=3, num_rows=4, context=0) == 4.0
    # Without drafts, windows are one row wide.
    assert costs.pass_seconds(num_sequences=1, num_rows=1, context=0) == 1.0
    assert costs.pass_seconds(num_sequences=3, num_rows=3, context=0) == pytest.approx(4 / 3)
    assert costs.draft_seconds(num_sequences=3, context=0) == 4.0
    # With a chunk, or more sequences than any capture size: as many rows as there are.
    assert costs.pass_seconds(num_sequences=1, num_rows=9, context=0) == 3.0
    assert costs.pass_seconds(num_sequences=5, num_rows=6, context=0) == 2.0


def test_replayed_single_rows_cost_what_was_measured_for_them() -> None:
    """Many sequences with a row each read more context than few windows of as many rows."""
    costs = StepCosts(
        passes=Curve.through({3: 1.0, 6: 2.0, 12: 4.0}),
        drafts=Curve.through({1: 1.0}),
        singles=Curve.through({1: 0.5, 2: 0.75, 4: 1.5}),
        context_per_sequence=0.01,
        capture_sizes=(1, 2, 4),
        width=3,
    )
    assert costs.pass_seconds(num_sequences=3, num_rows=3, context=0) == 1.5
    assert costs.pass_seconds(num_sequences=3, num_rows=3, context=10) == pytest.approx(1.9)
    # With a draft all windows are full; with a chunk or too many sequences nothing is replayed.
    assert costs.pass_seconds(num_sequences=3, num_rows=4, context=0) == 4.0
    assert costs.pass_seconds(num_sequences=5, num_rows=5, context=0) == pytest.approx(5 / 3)
