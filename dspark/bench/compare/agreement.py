"""Whether the arms said the same: at temperature 0 a faster way must not be another text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dspark.bench.compare.identity import Difference
from dspark.bench.workloads.trial import Trial

Gap = Callable[[Sequence[int]], float]  # top-2 gap of the target's logits after these ids


@dataclass(frozen=True, slots=True)
class Split:
    """A text that is not what the first arm said in its first trial."""

    prompt: int  # place in the workload, 0-based
    category: str
    arm: str
    difference: Difference

    def describe(self) -> str:
        found = self.difference
        kind = "tie" if found.is_tie else "DIFFERENT"
        return (
            f"prompt {self.prompt} ({self.category}): {kind} in {self.arm} at output token "
            f"{found.position}: expected {_token(found.expected_id)}, found "
            f"{_token(found.found_id)}, top-2 gap {found.top2_gap:.1e}"
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """What comparing every text of every trial came to; of each arm and prompt the first split.

    is_promised: in float32 the texts are the same but for ties. In lower precision the size of
    a step moves the logits, so that arms may part and both be right.
    """

    num_texts: int  # compared with the first arm's first
    splits: tuple[Split, ...]
    is_promised: bool

    @property
    def is_exact(self) -> bool:
        return not self.splits

    @property
    def holds(self) -> bool:
        """False when something that was promised is not so."""
        return not self.is_promised or all(split.difference.is_tie for split in self.splits)

    def lines(self) -> list[str]:
        """For people: the verdict, then each split."""
        if self.is_exact:
            verdict = f"token ids: identical in all {self.num_texts} texts"
        elif not self.is_promised:
            verdict = "token ids: not the same; identity is promised in float32 only"
        elif self.holds:
            verdict = "token ids: identical but for ties, where either token is right"
        else:
            verdict = "token ids: DIFFERENT, which must not be"
        return [verdict, *(f"  {split.describe()}" for split in self.splits)]

    def values(self) -> dict[str, object]:
        return {
            "token_ids_identical": self.is_exact,
            "token_ids_identical_but_for_ties": all(s.difference.is_tie for s in self.splits),
            "splits": [split.describe() for split in self.splits],
        }


def compare_texts(
    trials: Mapping[str, Sequence[Trial]], *, gap: Gap, is_promised: bool
) -> Agreement:
    """Hold every text of every arm against the first arm's first trial."""
    expected = next(iter(trials.values()))[0]
    splits: dict[tuple[str, int], Split] = {}
    num_texts = 0
    for arm, arm_trials in trials.items():
        for trial in arm_trials:
            if trial is expected:
                continue
            num_texts += len(trial.runs)
            for split in _splits(arm, expected, trial, gap):
                splits.setdefault((arm, split.prompt), split)
    return Agreement(num_texts, tuple(splits.values()), is_promised)


def _splits(arm: str, expected: Trial, found: Trial, gap: Gap) -> list[Split]:
    splits = []
    pairs = zip(expected.runs, found.runs, expected.categories, strict=True)
    for i, (right, run, category) in enumerate(pairs):
        if right.token_ids == run.token_ids:
            continue
        position = first_split(right.token_ids, run.token_ids)
        prefix = [*right.request.prompt_ids, *right.token_ids[:position]]
        difference = Difference(
            position=position,
            expected_id=_at(right.token_ids, position),
            found_id=_at(run.token_ids, position),
            top2_gap=gap(prefix),
        )
        splits.append(Split(i, category, arm, difference))
    return splits


def first_split(a: Sequence[int], b: Sequence[int]) -> int:
    """The first position at which two unequal sequences differ; an end differs from a token."""
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def _at(ids: Sequence[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None


def _token(token_id: int | None) -> str:
    return "the end" if token_id is None else f"id {token_id}"
