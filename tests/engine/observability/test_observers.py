"""What the engine says about itself while it runs."""

import logging

import pytest

from engine import EngineSnapshot
from engine.observability.acceptance_monitor import AcceptanceMonitor
from engine.observability.stats_log import StatsLog


def _after(rounds: int, accepted: int) -> EngineSnapshot:
    return EngineSnapshot(num_rounds=rounds, num_accepted_tokens=accepted)


def test_a_collapsed_acceptance_is_warned_of_once_with_likely_causes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = AcceptanceMonitor()
    watch(_after(199, 0))
    assert not watch.has_collapsed
    watch(_after(200, 10))
    watch(_after(400, 20))
    assert watch.has_collapsed
    (record,) = caplog.records
    assert "mean accept length 1.05 over 200 rounds" in record.getMessage()
    assert "sample_from_anchor" in record.getMessage()


def test_a_draft_that_recovers_is_watched_again(caplog: pytest.LogCaptureFixture) -> None:
    watch = AcceptanceMonitor()
    for snapshot in (_after(200, 0), _after(400, 400), _after(600, 400)):
        watch(snapshot)
    assert len(caplog.records) == 2


def test_one_line_an_interval_tells_rates_of_that_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    log = StatsLog(interval_s=10.0, clock=lambda: now)
    with caplog.at_level(logging.INFO):
        now = 5.0
        log(EngineSnapshot(num_steps=1))
        now = 20.0
        log(
            EngineSnapshot(
                num_steps=40,
                num_rounds=30,
                num_draft_tokens=90,
                num_accepted_tokens=45,
                accepted_per_position=(30, 15, 0),
                num_withheld_draft_tokens=8,
                num_output_tokens=100,
            )
        )
    lines = [r.getMessage() for r in caplog.records]
    assert "busy_s=20.0 tokens_per_s=5.0 accept_length=2.50 withheld_drafts=8" in lines[0]
    assert "per-position acceptance rate: 1.000, 0.500, 0.000" in lines[1]
    assert "average draft acceptance rate: 50.0%" in lines[1]
    assert len(lines) == 2


def test_idle_time_is_no_part_of_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    log = StatsLog(interval_s=10.0, clock=lambda: now)
    with caplog.at_level(logging.INFO):
        now = 3700.0
        log(EngineSnapshot(num_steps=4, num_output_tokens=40, idle_seconds=3592.0))
        assert caplog.records == [], "eight seconds of work are no interval yet"
        now = 3702.0
        log(EngineSnapshot(num_steps=9, num_output_tokens=90, idle_seconds=3592.0))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "steps=9 busy_s=10.0 tokens_per_s=9.0 " in line
