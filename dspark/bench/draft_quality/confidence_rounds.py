"""Collects the confidences of draft tokens and whether they were accepted."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draft import DraftBlock
from draft.calibration import ConfidenceRounds
from engine.runner.target_model import TargetOutput
from engine.scheduler.plan import StepPlan
from engine.scheduler.scheduler import Committed


class ConfidenceRecorder:
    """A StepObserver for drafts with a confidence head.

    Records rounds whose whole block was verified, except the last of a request: a stop may have
    cut it, so that later positions are unknown.
    """

    def __init__(self) -> None:
        self._request_ids: list[str] = []
        self._logits: list[Tensor] = []
        self._num_accepted: list[int] = []

    @property
    def num_rounds(self) -> int:
        return len(self._request_ids)

    @property
    def request_ids(self) -> frozenset[str]:
        """Requests with at least one round."""
        return frozenset(self._request_ids)

    def record(
        self,
        plan: StepPlan,
        block: DraftBlock | None,
        output: TargetOutput,
        committed: Sequence[Committed],
    ) -> None:
        if block is None or block.confidence_logits is None:
            return
        width = block.draft_ids.shape[1]
        by_sequence = {id(done.scheduled): done for done in committed}
        logits = block.confidence_logits.cpu()
        for row, scheduled in enumerate(plan.drafting):
            event = by_sequence[id(scheduled)].event
            if event is None or event.finish is not None or scheduled.num_drafts < width:
                continue
            self._request_ids.append(event.request_id)
            self._logits.append(logits[row])
            self._num_accepted.append(len(event.token_ids) - 1)

    def rounds(self, *, block_size: int, of: Callable[[str], bool]) -> ConfidenceRounds:
        """Return the rounds of requests for which `of` is true, in order of time."""
        chosen = [i for i, name in enumerate(self._request_ids) if of(name)]
        logits = [self._logits[i] for i in chosen] or [torch.empty(0, block_size)]
        return ConfidenceRounds(
            torch.stack(logits) if chosen else logits[0],
            torch.tensor([self._num_accepted[i] for i in chosen], dtype=torch.long),
        )
