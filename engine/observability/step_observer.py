"""Looking on while steps are decided: for diagnosis, calibration and training data."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draft import DraftBlock
from engine.runner.target_model import TargetOutput
from engine.scheduler.plan import StepPlan
from engine.scheduler.scheduler import Committed
from engine.scheduler.sequence import SequenceState


class StepObserver(Protocol):
    """Is shown every step after its commit, in the engine's thread, and changes nothing."""

    def record(
        self,
        plan: StepPlan,
        block: DraftBlock | None,
        output: TargetOutput,
        committed: Sequence[Committed],
    ) -> None:
        """block has a row for each of plan.drafting; None when nothing drafted.

        output lies in buffers that the next step reuses.
        """
        ...


@dataclass(frozen=True, slots=True)
class RecordedText:
    """A sequence as far as it went."""

    token_ids: tuple[int, ...]
    num_prompt: int


class RecentTexts:
    """The sequences that drafted last. Keeps references, so that a step pays next to nothing."""

    def __init__(self, *, count: int = 2) -> None:
        self._sequences: deque[SequenceState] = deque(maxlen=count)

    def record(
        self,
        plan: StepPlan,
        block: DraftBlock | None,
        output: TargetOutput,
        committed: Sequence[Committed],
    ) -> None:
        for scheduled in plan.drafting:
            if scheduled.seq not in self._sequences:
                self._sequences.append(scheduled.seq)

    def texts(self) -> list[RecordedText]:
        return [RecordedText(tuple(seq.token_ids), seq.num_prompt) for seq in self._sequences]
