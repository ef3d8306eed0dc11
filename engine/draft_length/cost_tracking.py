"""Brings costs that were measured too high down to what steps really take.

They are measured once, and whoever computed beside that made all or some of them too high. Steps
are timed anyway. Seconds and integers only; nothing here reads a clock.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Self

from engine.draft_length.cost_model import Curve, StepCosts
from engine.scheduler.plan import StepPlan

_LATEST = 8  # steps of a size, whose middle one counts: a few may be disturbed as well
_NEWS = 0.9  # of what was known of a size: whatever is not below this share of it changes nothing


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a step of rounds alone computed, and the seconds that it took."""

    num_sequences: int
    num_drafting: int
    num_rows: int
    context: int  # tokens before the anchor, the mean over all rounds
    draft_seconds: float
    pass_seconds: float  # with all that follows from it

    @classmethod
    def of(cls, plan: StepPlan, *, draft_seconds: float, pass_seconds: float) -> Self | None:
        """None beside a prompt chunk, most of whose rows need no logits."""
        if any(share.num_committed > 1 or not share.samples for share in plan.scheduled_seqs):
            return None
        return cls(
            num_sequences=len(plan.scheduled_seqs),
            num_drafting=len(plan.drafting),
            num_rows=plan.num_rows,
            context=sum(share.start for share in plan.scheduled_seqs) // len(plan.scheduled_seqs),
            draft_seconds=draft_seconds,
            pass_seconds=pass_seconds,
        )


class TrackedCosts:
    """Measured costs, lowered where steps turn out to be faster."""

    def __init__(self, measured: StepCosts) -> None:
        self._measured = measured
        self._passes = _TrackedCurve(measured.passes)
        self._drafts = _TrackedCurve(measured.drafts)
        self.costs = measured

    def record(self, times: StepTimes) -> bool:
        """Whether costs are others now."""
        expected = self._measured.pass_seconds(
            num_sequences=times.num_sequences, num_rows=times.num_rows, context=times.context
        )
        is_changed = self._passes.record(times.num_rows, times.pass_seconds / expected)
        if times.num_drafting > 0:
            expected = self._measured.draft_seconds(
                num_sequences=times.num_drafting, context=times.context
            )
            found = self._drafts.record(times.num_drafting, times.draft_seconds / expected)
            is_changed = is_changed or found
        if is_changed:
            self.costs = self._lowered()
        return is_changed

    def _lowered(self) -> StepCosts:
        measured = self._measured
        windows = self._passes.share_at(measured.width)
        return replace(
            measured,
            passes=self._passes.curve,
            drafts=self._drafts.curve,
            context_per_sequence=windows * measured.context_per_sequence,
            context_per_row=windows * measured.context_per_row,
            context_per_draft=self._drafts.share_at(1) * measured.context_per_draft,
        )


class _TrackedCurve:
    """A measured curve, and to what share of it steps of its sizes come, 1 at most.

    A size of which no steps are known was measured as wrongly as the nearest one of which they
    are: so a machine that slowed down everything alike changes no choice.
    """

    def __init__(self, measured: Curve) -> None:
        self._measured = measured
        self._latest: dict[int, deque[float]] = {}
        self._shares: dict[int, float] = {}
        self.curve = measured

    def record(self, size: int, share: float) -> bool:
        """Whether the curve is another now. share: of its seconds, what a step of the size took."""
        if size > self._measured.sizes[-1]:
            return False
        latest = self._latest.setdefault(size, deque(maxlen=_LATEST))
        latest.append(share)
        known = self._shares.get(size)
        middle = median(latest)
        is_news = middle < _NEWS * (known or 1.0)
        if len(latest) < _LATEST or (known is not None and not is_news):
            return False
        self._shares[size] = middle if is_news else 1.0
        points = {*self._measured.sizes, *self._shares}
        curve = Curve.through({n: self.share_at(n) * self._measured.at(n) for n in points})
        if all(curve.at(n) == self.curve.at(n) for n in points):
            return False
        self.curve = curve
        return True

    def share_at(self, size: int) -> float:
        return self._shares[_nearest(self._shares, size)] if self._shares else 1.0


def _nearest(sizes: Iterable[int], size: int) -> int:
    return min(sizes, key=lambda other: abs(other - size))
