"""The times of a step that the draft budget learns from."""

import time
from pathlib import Path
from unittest.mock import patch

from engine import EngineSamplingParams, Request
from engine.core.offline import drive
from engine.draft_length.cost_tracking import StepTimes
from engine.proposers.planner import PlannerByLoad
from engine.runner.batch import ScheduleBatch
from engine.runner.target_model import TargetModel, TargetOutput
from tests.support.engine.tiny_models import tiny_engine, write_tiny_draft

PASS_S = 0.02


def test_the_seconds_of_a_step_contain_its_target_pass(tmp_path: Path) -> None:
    forward, found = TargetModel.forward, list[StepTimes]()

    def slow(self: TargetModel, batch: ScheduleBatch) -> TargetOutput:
        time.sleep(PASS_S)
        return forward(self, batch)

    def record(self: PlannerByLoad, times: StepTimes) -> None:
        found.append(times)

    request = Request("a", (1, 2, 3), EngineSamplingParams(max_new_tokens=6))
    with (
        patch.object(TargetModel, "forward", slow),
        patch.object(PlannerByLoad, "record_times", record),
    ):
        built = tiny_engine(draft_folder=write_tiny_draft(tmp_path), draft_budget="auto")
        drive(built.engine, [request], concurrency=1)
    assert found
    assert all(times.pass_seconds >= PASS_S for times in found)
