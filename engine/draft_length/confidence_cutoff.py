"""The stage between drafting and verifying: which draft tokens are worth the target's rows."""

from dataclasses import replace
from typing import Protocol

from draft import DraftBlock
from draft.calibration import Scaling
from engine.scheduler.plan import ScheduledSequence, StepPlan


class VerifyBudget(Protocol):
    """Decides how much of each draft is verified.

    Whatever it decides about a draft token may depend on the tokens before it, on other requests
    and on the past, but not on the token itself or on those behind it: else the text would no
    longer be the target's (Appendix A of the paper).
    """

    def cut(self, plan: StepPlan, block: DraftBlock | None) -> StepPlan: ...


class VerifyAll:
    """Every draft token that the plan has room for."""

    def cut(self, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        return plan


class ConfidenceThreshold:
    """A draft token is verified while the draft believes that the block stands up to it.

    Token k goes to the target if S_k = c_1 ... c_k >= threshold, with confidences c_i read as a
    calibration says. c_k is made of the tokens before token k alone, so the rule
    of `VerifyBudget` holds. The first token is always verified: its round has paid for it already.
    The choice follows from the sequence's own text, so a seeded request stays the same in any
    batch.
    """

    def __init__(self, *, threshold: float, scaling: Scaling) -> None:
        """threshold: chance, above 0 and at most 1."""
        assert 0 < threshold <= 1, threshold
        self._threshold = threshold
        self._scaling = scaling

    def cut(self, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        """Waits for the draft: the host must know how many rows the target computes."""
        if block is None:
            return plan
        assert block.confidence_logits is not None, "a threshold without confidences"
        survival = self._scaling.probabilities(block.confidence_logits.cpu())
        survival = survival.nan_to_num(1.0).cumprod(dim=1)  # what is not a number decides nothing
        worth = iter((survival >= self._threshold).sum(dim=1).tolist())
        return StepPlan(
            tuple(
                _shortened(s, next(worth)) if s.num_drafts > 0 else s for s in plan.scheduled_seqs
            )
        )


def _shortened(scheduled: ScheduledSequence, worth: int) -> ScheduledSequence:
    num_drafts = min(scheduled.num_drafts, max(1, worth))
    return (
        scheduled
        if num_drafts == scheduled.num_drafts
        else replace(scheduled, num_drafts=num_drafts)
    )
