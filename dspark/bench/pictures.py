"""Draws the newest results for the README: servers compared, and speedup by draft.

    python -m dspark.bench.pictures

Bars are medians, whiskers the minimum and maximum of the trials. Needs matplotlib (extra [train]).
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Relative to the root of the checkout.
RESULTS = Path("benchmarks") / "results"
PICTURE = Path("docs") / "pictures" / "speed.svg"

_OURS, _OTHERS = "#2a6f97", "#b8bfc6"
_NAMES = {
    "speculation": "this server, with its draft",
    "plain": "this server, plain",
    "int8": "this server, int8, with its draft",
    "int8 plain": "this server, int8, plain",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured value: median and range of the trials."""

    name: str
    median: float
    least: float
    most: float
    is_ours: bool = True

    @classmethod
    def of(cls, name: str, values: Mapping[str, float], *, is_ours: bool = True) -> "Bar":
        return cls(name, values["median"], values["min"], values["max"], is_ours)


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars of one unit in order, with an optional line that means no gain."""

    title: str
    bars: tuple[Bar, ...]
    decimals: int
    line_at: float | None = None


def newest(kind: str, folder: Path) -> Path:
    """Return the last bench-KIND-DATE-TIME.json. Raises FileNotFoundError without any."""
    found = sorted(folder.glob(f"bench-{kind}-[0-9]*.json"))
    if not found:
        raise FileNotFoundError(
            f"{folder}: no bench-{kind}-*.json; dspark bench --output writes it"
        )
    return found[-1]


def server_panels(peers: Mapping[str, Any]) -> list[Panel]:
    """Make a panel for each load with the output tokens/s of every server."""
    panels = []
    for load in peers["loads"]:
        bars = [
            Bar.of(
                _NAMES.get(name) or _versioned(name, peers["contenders"][name]["about"]),
                server["output_throughput"],
                is_ours=name in _NAMES,
            )
            for name, server in load["servers"].items()
        ]
        streams = load["streams"]
        title = f"{streams} stream{'s' if streams > 1 else ''}, tokens/s over HTTP"
        panels.append(Panel(title, tuple(bars), decimals=0))
    return panels


def _versioned(name: str, about: str) -> str:
    """Return the first clause of what a server is, with the variant that its name has.

    'llama.cpp Q8_0' with 'llama.cpp 0.7.0, weights of 8 bits' is 'llama.cpp 0.7.0 Q8_0'.
    """
    clause = about.partition(",")[0].partition(" with ")[0]
    return f"{clause} {name.partition(' ')[2]}".rstrip()


def draft_panel(speculation: Mapping[str, Any]) -> Panel:
    """Make a panel with the decode speedup by draft, by category of prompt."""
    bars = [
        Bar.of(f"{name} ({of['accept_length']:.2f} tokens a round)", of["speedup_decode_only"])
        for name, of in speculation["categories"].items()
    ]
    bars.sort(key=lambda bar: -bar.median)
    return Panel(
        "decoding with a draft, times plain (the line)", tuple(bars), decimals=2, line_at=1.0
    )


def caption(peers: Mapping[str, Any]) -> str:
    """Describe the models, the machine and the bars."""
    return (
        f"demo pair of 135M parameters, float32 if not named, {peers['cores']} cores of an "
        f"{peers['cpu']}; bars: medians, whiskers: range of the trials"
    )


def draw(panels: Sequence[Panel], path: Path, *, caption: str, source: str) -> None:
    """Write the panels as an SVG that names its source and no date.

    Raises ImportError without matplotlib.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "speed", "font.size": 9}):
        figure = Figure(figsize=(7.5, 1.9 * len(panels)), layout="constrained")
        for axes, panel in zip(figure.subplots(len(panels), 1), panels, strict=True):
            _draw_panel(axes, panel)
        figure.supxlabel(caption, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        FigureCanvasSVG(figure).print_svg(  # type: ignore[no-untyped-call]
            str(path), metadata={"Date": None, "Creator": None, "Source": source}
        )


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    bars = panel.bars
    medians = [bar.median for bar in bars]
    reach = [[bar.median - bar.least for bar in bars], [bar.most - bar.median for bar in bars]]
    axes.barh(
        [bar.name for bar in bars],
        medians,
        color=[_OURS if bar.is_ours else _OTHERS for bar in bars],
        xerr=reach,
        error_kw={"elinewidth": 0.8, "capsize": 2},
    )
    for row, bar in enumerate(bars):
        axes.text(bar.most, row, f"  {bar.median:.{panel.decimals}f}", va="center")
    if panel.line_at is not None:
        axes.axvline(panel.line_at, color="black", linewidth=0.8)
    axes.set_title(panel.title, loc="left", fontsize=9, fontweight="bold")
    axes.set_xlim(0, 1.1 * max(bar.most for bar in bars))
    axes.invert_yaxis()  # the first on top
    axes.tick_params(length=0)
    axes.xaxis.set_visible(False)
    for side in axes.spines.values():
        side.set_visible(False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the picture; return 1 without results or without matplotlib."""
    parser = argparse.ArgumentParser(prog="python -m dspark.bench.pictures", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--output", type=Path, default=PICTURE, help="the SVG to write")
    args = parser.parse_args(arguments)
    try:
        peers, speculation = (newest(kind, args.results) for kind in ("peers", "speculation"))
        found = json.loads(peers.read_text(encoding="utf-8"))
        panels = [
            *server_panels(found),
            draft_panel(json.loads(speculation.read_text(encoding="utf-8"))),
        ]
        source = f"{peers.name} {speculation.name}"
        draw(panels, args.output, caption=caption(found), source=source)
    except (OSError, ImportError) as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    print(args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
