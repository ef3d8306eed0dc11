"""Observers of the running engine: the statistics log and the acceptance monitor."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from engine import EngineConfig, EngineSamplingParams, EngineSnapshot, Request
from engine.build import build_engine
from engine.observability.acceptance_monitor import AcceptanceMonitor
from engine.observability.stats_log import StatsLog
from tests.support.engine.tiny_models import tiny_target, write_tiny_draft


def _after(rounds: int, accepted: int) -> EngineSnapshot:
    return EngineSnapshot(num_rounds=rounds, num_accepted_tokens=accepted)


def test_a_collapsed_acceptance_is_warned_of_once_with_the_command_that_explains_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    monitor = AcceptanceMonitor()
    monitor(_after(199, 0))
    assert not monitor.has_collapsed
    monitor(_after(200, 10))
    monitor(_after(400, 20))
    assert monitor.has_collapsed
    (record,) = caplog.records
    assert "mean accept length 1.05 over 200 rounds" in record.getMessage()
    assert "dspark doctor --diagnose-draft" in record.getMessage()


def test_a_second_collapse_is_warned_of_again(caplog: pytest.LogCaptureFixture) -> None:
    monitor = AcceptanceMonitor()
    for snapshot in (_after(200, 0), _after(400, 400), _after(600, 400)):
        monitor(snapshot)
    assert len(caplog.records) == 2


def test_a_collapse_under_load_costs_a_warning_and_no_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A built engine with a useless draft: it serves on, in its one thread."""
    tiny_target().model.save_pretrained(tmp_path / "target")  # type: ignore[operator]
    config = EngineConfig(
        target=str(tmp_path / "target"),
        draft=str(write_tiny_draft(tmp_path / "draft")),
        draft_budget="always",
        num_pages=64,
        num_threads=1,
    )
    params = EngineSamplingParams(max_new_tokens=225, ignore_eos=True)
    engine = build_engine(config)
    num_threads = threading.active_count()
    try:
        request = Request("a", (5, 6, 7), params)
        asyncio.run(engine.generate(request, lambda _: None))
        after = asyncio.run(engine.snapshot())
        assert threading.active_count() == num_threads
    finally:
        engine.close()
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "acceptance has collapsed: mean accept length 1." in warning
    assert after.has_collapsed
    assert after.num_steps <= 226


def test_each_interval_has_a_line_with_its_rates(
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


def test_idle_time_does_not_count_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
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
