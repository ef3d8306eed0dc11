"""Plots predicted against observed acceptance."""

from pathlib import Path

from draft.atomic_write import whole_file
from draft.calibration import reliability
from dspark.bench.draft_quality.calibration import CalibrationOutcome

PLOT_NAME = "calibration.png"


def draw_reliability(outcome: CalibrationOutcome, path: Path) -> None:
    """Plot every position before and after calibration, cross-validated, as a PNG.

    Raises ImportError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    versions = (("uncalibrated", outcome.uncalibrated), ("calibrated", outcome.calibrated))
    for axes, (title, predictions) in zip(figure.subplots(1, 2), versions, strict=True):
        axes.plot([0, 1], [0, 1], color="gray", linewidth=1)
        for k in range(predictions.survival.shape[1]):
            bins = reliability(predictions.survival[:, k], predictions.accepted[:, k])
            xs, ys = [b.prediction for b in bins], [b.outcome for b in bins]
            axes.plot(xs, ys, "o-", markersize=3, label=f"position {k}")
        axes.set_title(title)
        axes.set_xlabel("predicted probability of acceptance")
        axes.set_ylabel("observed share accepted")
        axes.grid(alpha=0.3)
        axes.legend()
    with whole_file(path) as partial, partial.open("wb") as file:
        FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]
