"""Plots the log of a training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draft.atomic_write import whole_file


def draw_curves(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot losses, acceptance by position and expected accept length over steps, as a PNG.

    Raises ImportError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [entry for entry in entries if entry["kind"] == "step"]
    checks = [entry for entry in entries if entry["kind"] == "validation"]
    figure = Figure(figsize=(13, 4), layout="constrained")
    losses, acceptance, length = figure.subplots(1, 3)
    for name in ("loss", "cross_entropy", "l1"):
        losses.plot([s["step"] for s in steps], [s[name] for s in steps], label=name)
    at = [check["step"] for check in checks]
    for k in range(len(checks[0]["acceptance"]) if checks else 0):
        acceptance.plot(at, [c["acceptance"][k] for c in checks], "o-", label=f"position {k}")
    length.plot(at, [c["accept_length"] for c in checks], "o-")
    titles = ("training", "held-out acceptance", "held-out expected accept length")
    for axes, title in zip((losses, acceptance, length), titles, strict=True):
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    losses.legend()
    if checks:
        acceptance.legend()
    with whole_file(path) as partial, partial.open("wb") as file:
        FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]
