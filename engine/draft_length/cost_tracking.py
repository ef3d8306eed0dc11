"""Lowers measured costs to what steps take.

Costs are measured once at start, and other work on the machine may make them too high. Steps are
timed anyway; this module reads no clock.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Self

from engine.draft_length.cost_model import Curve, StepCosts
from engine.scheduler.plan import StepPlan

_LATEST = 8  # steps of a size whose median counts: a few may be disturbed as well
_NEWS = 0.9  # a median changes costs only below this fraction of the known one


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The size of a step without prompt chunks, and its seconds."""

    num_sequences: int
    num_drafting: int
    num_rows: int
    context: int  # tokens before the anchor, the mean over all rounds
    draft_seconds: float
    pass_seconds: float  # with verification, commit and context write

    @classmethod
    def of(cls, plan: StepPlan, *, draft_seconds: float, pass_seconds: float) -> Self | None:
        """Describe a step; None if it has a prompt chunk, most of whose rows need no logits."""
        if any(s.num_committed > 1 or not s.samples for s in plan.scheduled_seqs):
            return None
        return cls(
            num_sequences=len(plan.scheduled_seqs),
            num_drafting=len(plan.drafting),
            num_rows=plan.num_rows,
            context=sum(s.start for s in plan.scheduled_seqs) // len(plan.scheduled_seqs),
            draft_seconds=draft_seconds,
            pass_seconds=pass_seconds,
        )


class TrackedCosts:
    """Keeps measured costs, and lowers them where steps are faster."""

    def __init__(self, measured: StepCosts) -> None:
        self._measured = measured
        self._passes = _TrackedCurve(measured.passes)
        self._drafts = _TrackedCurve(measured.drafts)
        self.costs = measured

    def record(self, times: StepTimes) -> bool:
        """Take a step's times into account; return whether costs have changed."""
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
        windows = self._passes.ratio_at(measured.width)
        return replace(
            measured,
            passes=self._passes.curve,
            drafts=self._drafts.curve,
            context_per_sequence=windows * measured.context_per_sequence,
            context_per_row=windows * measured.context_per_row,
            context_per_draft=self._drafts.ratio_at(1) * measured.context_per_draft,
        )


class _TrackedCurve:
    """A measured curve, and for some sizes the ratio of their steps' seconds to it, at most 1.

    A size without steps takes the ratio of the nearest size with steps. So a machine that slowed
    down all measurements alike changes no choice.
    """

    def __init__(self, measured: Curve) -> None:
        self._measured = measured
        self._latest: dict[int, deque[float]] = {}
        self._ratios: dict[int, float] = {}
        self.curve = measured

    def record(self, size: int, ratio: float) -> bool:
        """Count a step; return whether the curve has changed. ratio: to the measured seconds."""
        if size > self._measured.sizes[-1]:
            return False
        latest = self._latest.setdefault(size, deque(maxlen=_LATEST))
        latest.append(ratio)
        known = self._ratios.get(size)
        middle = median(latest)
        is_news = middle < _NEWS * (known or 1.0)
        if len(latest) < _LATEST or (known is not None and not is_news):
            return False
        self._ratios[size] = middle if is_news else 1.0
        points = {*self._measured.sizes, *self._ratios}
        curve = Curve.through({n: self.ratio_at(n) * self._measured.at(n) for n in points})
        if all(curve.at(n) == self.curve.at(n) for n in points):
            return False
        self.curve = curve
        return True

    def ratio_at(self, size: int) -> float:
        return self._ratios[_nearest(self._ratios, size)] if self._ratios else 1.0


def _nearest(sizes: Iterable[int], size: int) -> int:
    return min(sizes, key=lambda other: abs(other - size))
