"""Defines the observer of committed steps, for calibration and training data."""

from collections.abc import Sequence
from typing import Protocol

from draft import DraftBlock
from engine.runner.target_model import TargetOutput
from engine.scheduler.plan import StepPlan
from engine.scheduler.scheduler import Committed


class StepObserver(Protocol):
    """Records every step after its commit, in the engine's thread, and changes nothing."""

    def record(
        self,
        plan: StepPlan,
        block: DraftBlock | None,
        output: TargetOutput,
        committed: Sequence[Committed],
    ) -> None:
        """Record one step.

        block has a row for each of plan.drafting; None when nothing drafted. The next step
        reuses the buffers of output.
        """
        ...
