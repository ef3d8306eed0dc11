"""Calibrates the confidences of a draft, with cross-validation over prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from draft import DraftLoadError
from draft.calibration import GRID, PositionMetrics, Predictions, Scaling, fit_scaling, measure
from draft.checkpoint.calibration_file import Calibration, read_calibration
from dspark.bench.draft_quality.confidence_rounds import ConfidenceRecorder
from dspark.bench.draft_quality.round_counts import MIN_ROUNDS
from dspark.bench.report.columns import columns
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.trial import Workload
from engine.api import Request
from engine.build import Built
from engine.core.offline import drive_each
from engine.errors import LoadError

NUM_FOLDS = 4


@dataclass(frozen=True, slots=True)
class CalibrationOutcome:
    """Temperatures fitted on all rounds, with cross-validated metrics."""

    calibration: Calibration
    uncalibrated: Predictions  # of every round
    calibrated: Predictions  # of every round, by the fit on the other folds
    before: tuple[PositionMetrics, ...]
    after: tuple[PositionMetrics, ...]
    file: Path
    num_prompts: int  # that ended before collecting stopped

    @property
    def holds(self) -> bool:
        return True

    def lines(self) -> list[str]:
        rows: list[tuple[str, ...]] = [
            ("position", "temperature", "shift", "ECE", "after", "AUC", "after", "Brier", "after")
        ]
        scaling = self.calibration.scaling
        positions = zip(scaling.temperatures, scaling.shifts, self.before, self.after, strict=True)
        for k, (temperature, shift, before, after) in enumerate(positions):
            cells = (f"{before.ece:.4f}", f"{after.ece:.4f}", _share(before.auc), _share(after.auc))
            brier = (f"{before.brier:.4f}", f"{after.brier:.4f}")
            rows.append((str(k), f"{temperature:.3f}", f"{shift:+.3f}", *cells, *brier))
        rounds = f"{self.calibration.num_samples} rounds, of {self.num_prompts} whole answers"
        return [*columns(rows), "", *self._edges(), rounds, f"written: {self.file}"]

    def _edges(self) -> list[str]:
        """Name the positions whose temperature is the smallest or largest of the grid."""
        edges = {GRID[0]: "smallest", GRID[-1]: "largest"}
        return [
            f"position {k}: temperature {temperature:g} is the {edges[temperature]} that is tried; "
            "the confidence head fits this traffic badly there"
            for k, temperature in enumerate(self.calibration.temperatures)
            if temperature in edges
        ]

    def values(self) -> Mapping[str, object]:
        return {
            "temperatures": list(self.calibration.temperatures),
            "shifts": list(self.calibration.shifts),
            "fitted_rounds": self.calibration.num_samples,
            "prompts": self.num_prompts,
            "folds": NUM_FOLDS,
            "ece_before_mean": mean(self.calibration.ece_before),
            "ece_after_mean": mean(self.calibration.ece_after),
            "before": [_values(metrics) for metrics in self.before],
            "after": [_values(metrics) for metrics in self.after],
            "file": str(self.file),
        }


def check_can_calibrate(built: Built, folder: Path, *, replace: bool) -> None:
    """Raise LoadError for a draft that cannot be calibrated, before the work starts."""
    assert built.draft is not None
    config = built.draft.config
    if not config.has_confidence_head:
        raise LoadError(
            "speculative.draft_model: draft enable_confidence_head: found false, accepted: a "
            "draft with a confidence head"
        )
    if replace:
        return
    try:
        existing = read_calibration(folder, block_size=config.block_size)
    except DraftLoadError as error:
        raise LoadError(f"speculative.draft_model: {error}; --replace overwrites it") from error
    if existing is not None and not existing.is_identity:
        raise LoadError(
            f"speculative.draft_model: draft calibration.json: found temperatures from "
            f"{existing.num_samples} rounds of {existing.dataset}, accepted: none, or "
            "--replace to fit them anew"
        )


def fold_of_each(categories: Sequence[str]) -> list[int]:
    """Assign prompts to folds: round-robin in each category, with shifted starts."""
    seen: dict[str, int] = {}
    offsets = {name: i for i, name in enumerate(dict.fromkeys(categories))}
    folds = []
    for name in categories:
        place = seen.get(name, 0)
        seen[name] = place + 1
        folds.append((place + offsets[name]) % NUM_FOLDS)
    return folds


def calibrate(
    built: Built,
    recorder: ConfidenceRecorder,
    workload: Workload,
    *,
    dataset: str,
    folder: Path,
    num_rounds: int,
    report: Report,
) -> CalibrationOutcome:
    """Run the workload, fit, cross-validate and write calibration.json. Reports twice.

    Collecting stops at num_rounds, or as soon as the rest cannot give MIN_ROUNDS. Raises LoadError
    for too few rounds, and OSError if the file cannot be written.
    """
    report(
        f"collecting at least {MIN_ROUNDS} rounds, at most about {num_rounds}, from "
        f"{len(workload.prompts)} prompts"
    )
    requests = workload.requests()
    folds = fold_of_each([prompt.category for prompt in workload.prompts])
    fold_of = {r.request_id: fold for r, fold in zip(requests, folds, strict=True)}
    num_prompts = _collect(built, recorder, requests, workload.concurrency, num_rounds)
    block_size = built.engine.info.block_size
    rounds = recorder.rounds(block_size=block_size, of=lambda name: True)
    seen = {fold_of[name] for name in recorder.request_ids}
    if len(rounds) < MIN_ROUNDS or len(seen) < NUM_FOLDS:
        raise LoadError(
            f"found {len(rounds)} rounds of {num_prompts} prompts in {len(seen)} folds, and too "
            f"few can follow; accepted: at least {MIN_ROUNDS} in {NUM_FOLDS}, by more prompts or "
            "more tokens (--num-prompts, --max-tokens)"
        )
    report(f"fitting on {len(rounds)} rounds")
    uncalibrated, calibrated = _cross_validate(recorder, fold_of, block_size=block_size)
    scaling, before, after = fit_scaling(rounds), measure(uncalibrated), measure(calibrated)
    calibration = Calibration(
        temperatures=scaling.temperatures,
        shifts=scaling.shifts,
        dataset=dataset,
        num_samples=len(rounds),
        ece_before=tuple(metrics.ece for metrics in before),
        ece_after=tuple(metrics.ece for metrics in after),
    )
    file = calibration.write(folder)
    return CalibrationOutcome(
        calibration, uncalibrated, calibrated, before, after, file, num_prompts
    )


def _collect(
    built: Built,
    recorder: ConfidenceRecorder,
    requests: Sequence[Request],
    concurrency: int,
    num_rounds: int,
) -> int:
    """Run requests until there are enough rounds, or too few can follow; count those that ended."""
    left = {r.request_id: max(r.params.max_new_tokens - 1, 0) for r in requests}
    if sum(left.values()) < MIN_ROUNDS:
        return 0
    for run in drive_each(built.engine, requests, concurrency=concurrency):
        del left[run.request.request_id]
        if recorder.num_rounds >= num_rounds:
            break
        if recorder.num_rounds + sum(left.values()) < MIN_ROUNDS:
            break
    return len(requests) - len(left)


def _cross_validate(
    recorder: ConfidenceRecorder, fold_of: Mapping[str, int], *, block_size: int
) -> tuple[Predictions, Predictions]:
    """Return the predictions of every round without calibration, and by the other folds' fit."""
    uncalibrated, calibrated = [], []
    for fold in range(NUM_FOLDS):
        inside = {name for name, own in fold_of.items() if own == fold}
        held_out = recorder.rounds(block_size=block_size, of=inside.__contains__)
        others = recorder.rounds(block_size=block_size, of=(fold_of.keys() - inside).__contains__)
        uncalibrated.append(held_out.predicted(Scaling.identity(block_size)))
        calibrated.append(held_out.predicted(fit_scaling(others)))
    return Predictions.joined(uncalibrated), Predictions.joined(calibrated)


def _values(metrics: PositionMetrics) -> dict[str, float | None]:
    return {"ece": metrics.ece, "auc": metrics.auc, "brier": metrics.brier}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
