"""Checks that all arms of a greedy comparison generate the same texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from dspark.bench.compare.identity import Difference, Gap, first_difference, top2_gap
from dspark.bench.workloads.trial import Trial
from engine.loading.target import LoadedTarget


@dataclass(frozen=True, slots=True)
class Divergence:
    """A text that differs from that of the first arm's first trial."""

    prompt: int  # index in the workload
    category: str
    arm: str
    difference: Difference

    def describe(self) -> str:
        found = self.difference
        where = f"prompt {self.prompt} ({self.category})"
        return f"{where}: {found.kind} in {self.arm} at {found.describe()}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Every text of every trial, compared with the first arm's first trial.

    is_guaranteed: in float32 the texts are equal except at ties. In lower precision the number of
    rows in a step changes the logits, so that different texts may both be right.
    """

    num_texts: int
    divergences: tuple[Divergence, ...]  # the first of each arm and prompt
    is_guaranteed: bool

    @property
    def is_exact(self) -> bool:
        return not self.divergences

    @property
    def holds(self) -> bool:
        """False if equal texts are guaranteed and some differ, ties apart."""
        return not self.is_guaranteed or self._differ_at_ties_only

    @property
    def _differ_at_ties_only(self) -> bool:
        return all(found.difference.is_tie for found in self.divergences)

    def lines(self) -> list[str]:
        """Return the verdict, then each divergence."""
        if self.is_exact:
            verdict = f"token ids: identical in all {self.num_texts} texts"
        elif not self.is_guaranteed:
            verdict = "token ids: not identical; identity is guaranteed in float32 only"
        elif self.holds:
            verdict = "token ids: identical except at ties, where either token is right"
        else:
            verdict = "token ids: DIFFERENT, which violates the guarantee"
        return [verdict, *(f"  {found.describe()}" for found in self.divergences)]

    def values(self) -> dict[str, object]:
        return {
            "token_ids_identical": self.is_exact,
            "token_ids_identical_but_for_ties": self._differ_at_ties_only,
            "splits": [found.describe() for found in self.divergences],
        }


def agreement_of(trials: Mapping[str, Sequence[Trial]], target: LoadedTarget) -> Agreement:
    """Compare the texts of arms that decode the same target greedily."""
    return compare_texts(
        trials, gap=partial(top2_gap, target), is_guaranteed=target.dtype == torch.float32
    )


def compare_texts(
    trials: Mapping[str, Sequence[Trial]], *, gap: Gap, is_guaranteed: bool
) -> Agreement:
    """Compare every text of every arm with the first arm's first trial."""
    expected = next(iter(trials.values()))[0]
    found: dict[tuple[str, int], Divergence] = {}
    num_texts = 0
    for arm, arm_trials in trials.items():
        for trial in arm_trials:
            if trial is expected:
                continue
            num_texts += len(trial.runs)
            pairs = zip(expected.runs, trial.runs, expected.categories, strict=True)
            for i, (right, run, category) in enumerate(pairs):
                difference = first_difference(
                    right.request.prompt_ids, right.token_ids, run.token_ids, gap=gap
                )
                if difference is not None:
                    found.setdefault((arm, i), Divergence(i, category, arm, difference))
    return Agreement(num_texts, tuple(found.values()), is_guaranteed)
