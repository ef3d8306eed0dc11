"""Cuts drafts by the draft model's confidence, between drafting and verification."""

from typing import Protocol

from draft import DraftBlock
from draft.calibration import Scaling
from engine.scheduler.plan import StepPlan


class VerifyBudget(Protocol):
    """Decides how many tokens of each draft are verified.

    A decision about a draft token may depend on the tokens before it, on other requests and on
    the past, but not on the token itself or on those after it. Otherwise the output would not
    have the target's distribution (Appendix A of the paper).
    """

    def cut(self, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        """Return the plan with the number of draft tokens that each sequence verifies."""
        ...


class VerifyAll:
    """Verifies every planned draft token."""

    def cut(self, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        return plan


class ConfidenceThreshold:
    """Verifies draft tokens while the estimated chance that all of them are accepted is high.

    Token k is verified if S_k = c_1 ... c_k >= threshold, with calibrated confidences c_i. c_k
    depends only on the tokens before token k, so the rule of `VerifyBudget` holds. The first token
    is always verified: the draft pass is already paid. The choice depends only on the sequence's
    tokens, so a seeded request has the same output in any batch.
    """

    def __init__(self, *, threshold: float, scaling: Scaling) -> None:
        """threshold: a probability, above 0 and at most 1."""
        assert 0 < threshold <= 1, threshold
        self._threshold = threshold
        self._scaling = scaling

    def cut(self, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        """See VerifyBudget.cut. Waits for the draft: the host needs the number of rows."""
        if block is None:
            return plan
        assert block.confidence_logits is not None, "a threshold without confidences"
        survival = self._scaling.probabilities(block.confidence_logits.cpu())
        survival = survival.nan_to_num(1.0).cumprod(dim=1)  # NaN cuts nothing
        num_likely = iter((survival >= self._threshold).sum(dim=1).tolist())
        return StepPlan(
            tuple(
                s.cut(max(1, next(num_likely)), "confidence") if s.source == "draft" else s
                for s in plan.scheduled_seqs
            )
        )
