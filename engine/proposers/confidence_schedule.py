"""Gives out a step's draft rows by the confidences of its blocks.

The DSpark paper's scheduler, in the form of its section 5.2: the total is chosen before the blocks
exist, from costs and earlier rounds; the likeliest tokens of all blocks get the rows.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from draft import DraftBlock
from draft.calibration import Scaling
from engine.draft_length.cost_model import FloatArray
from engine.proposers.choice import allocate
from engine.scheduler.plan import ScheduledSequence, StepPlan


class RecordConfidences(Protocol):
    """Takes the confidences of N blocks, [N, block], for later steps."""

    def __call__(
        self, scheduled_seqs: Sequence[ScheduledSequence], confidences: FloatArray
    ) -> None: ...


class ConfidenceSchedule:
    """Verifies the likeliest tokens of all blocks, as many as the plan has budgeted in total.

    A token's chance is the product of the confidences up to it, which depend only on the tokens
    before it. A later token of its block is never likelier, and of equal ones the earlier comes
    first. So no token, and none after it, decides whether it is verified: `VerifyBudget` holds.
    Rounds that are not budgeted, such as those of reproducible sequences, keep their drafts.
    """

    def __init__(self, *, scaling: Scaling, record: RecordConfidences) -> None:
        self._scaling = scaling
        self._record = record

    def cut(self, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        """See VerifyBudget.cut. Waits for the draft: the host needs the numbers of rows."""
        drafting = plan.drafting
        rows = [row for row, s in enumerate(drafting) if s.num_budgeted is not None]
        if block is None or not rows:
            return plan
        assert block.confidence_logits is not None, "a schedule without confidences"
        logits = block.confidence_logits[rows].cpu()
        confidences = self._scaling.probabilities(logits).nan_to_num(1.0).double().numpy()
        budgeted = [drafting[row] for row in rows]
        self._record(budgeted, confidences)
        is_open = np.arange(logits.shape[1]) < np.array([[s.num_drafts] for s in budgeted])
        total = sum(s.num_budgeted or 0 for s in budgeted)
        numbers = allocate(confidences.cumprod(axis=1) * is_open, total).tolist()
        kept = dict(zip(map(id, budgeted), numbers, strict=True))
        return StepPlan(
            tuple(
                s.cut(kept[id(s)], "confidence") if id(s) in kept else s
                for s in plan.scheduled_seqs
            )
        )
