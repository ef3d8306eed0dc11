"""Fits the temperatures of a draft's confidences on one part of the prompts, judges on another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from draft import DraftLoadError
from draft.calibration import (
    ConfidenceRounds,
    PositionMetrics,
    Scaling,
    fit_scaling,
    measure,
)
from draft.calibration_file import Calibration, read_calibration
from engine.benchmarks.arms import Report
from engine.benchmarks.columns import columns
from engine.benchmarks.trial import Workload
from engine.build import Built
from engine.confidence_rounds import ConfidenceRecorder
from engine.driving import drive
from engine.errors import LoadError

HELD_OUT_EVERY = 4  # of so many prompts one is kept for judging
# Rounds. With fewer the fit follows the accidents of a few prompts.
MIN_FITTED, MIN_HELD_OUT = 500, 150


@dataclass(frozen=True, slots=True)
class CalibrationOutcome:
    """Temperatures, and what they are worth on prompts that they have not seen."""

    calibration: Calibration
    before: tuple[PositionMetrics, ...]
    after: tuple[PositionMetrics, ...]
    held_out: ConfidenceRounds
    file: Path

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
        return [*columns(rows), "", f"written: {self.file}"]

    def values(self) -> Mapping[str, object]:
        return {
            "temperatures": list(self.calibration.temperatures),
            "shifts": list(self.calibration.shifts),
            "fitted_rounds": self.calibration.num_samples,
            "held_out_rounds": len(self.held_out),
            "ece_before_mean": mean(self.calibration.ece_before),
            "ece_after_mean": mean(self.calibration.ece_after),
            "before": [_values(metrics) for metrics in self.before],
            "after": [_values(metrics) for metrics in self.after],
            "file": str(self.file),
        }


def check_can_calibrate(built: Built, folder: Path, *, replace: bool) -> None:
    """Refuse before the work begins: raises LoadError."""
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
        raise LoadError(f"speculative.draft_model: {error}; --replace writes it anew") from error
    if existing is not None and not existing.is_identity:
        raise LoadError(
            f"speculative.draft_model: draft calibration.json: found temperatures from "
            f"{existing.num_samples} rounds of {existing.dataset}, accepted: none, or "
            "--replace to fit them anew"
        )


def held_out_prompts(categories: Sequence[str]) -> list[bool]:
    """Which prompts judge: one of four, of every category, beginning elsewhere in each."""
    seen: dict[str, int] = {}
    offsets = {name: i for i, name in enumerate(dict.fromkeys(categories))}
    held = []
    for name in categories:
        place = seen.get(name, 0)
        seen[name] = place + 1
        held.append((place + offsets[name]) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)
    return held


def calibrate(
    built: Built,
    recorder: ConfidenceRecorder,
    workload: Workload,
    *,
    dataset: str,
    folder: Path,
    report: Report,
) -> CalibrationOutcome:
    """Run the workload, fit, judge and write calibration.json. Reports twice.

    Raises LoadError when there are too few rounds, and OSError when the file cannot be written.
    """
    report(f"collecting from {len(workload.prompts)} prompts")
    requests = workload.requests()
    drive(built.engine, requests, concurrency=workload.concurrency)
    is_held_out = held_out_prompts([prompt.category for prompt in workload.prompts])
    held = {r.request_id for r, is_held in zip(requests, is_held_out, strict=True) if is_held}
    block_size = built.engine.info.block_size
    fitted = recorder.rounds(block_size=block_size, of=lambda name: name not in held)
    held_out = recorder.rounds(block_size=block_size, of=lambda name: name in held)
    if len(fitted) < MIN_FITTED or len(held_out) < MIN_HELD_OUT:
        raise LoadError(
            f"found {len(fitted)} rounds to fit on and {len(held_out)} held out (one "
            f"prompt of {HELD_OUT_EVERY}); accepted: at least {MIN_FITTED} and {MIN_HELD_OUT}, so "
            "ask more prompts or for more tokens (--num-prompts, --max-tokens)"
        )
    report(f"fitting on {len(fitted)} rounds")
    scaling = fit_scaling(fitted)
    before, after = measure(held_out, Scaling.identity(block_size)), measure(held_out, scaling)
    calibration = Calibration(
        temperatures=scaling.temperatures,
        shifts=scaling.shifts,
        dataset=dataset,
        num_samples=len(fitted),
        ece_before=tuple(metrics.ece for metrics in before),
        ece_after=tuple(metrics.ece for metrics in after),
    )
    return CalibrationOutcome(calibration, before, after, held_out, calibration.write(folder))


def _values(metrics: PositionMetrics) -> dict[str, float | None]:
    return {"ece": metrics.ece, "auc": metrics.auc, "brier": metrics.brier}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
