"""Draws bars with ranges, and curves, as SVG text without any library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("#3445c4", "#d08a00", "#157a80", "#a11f5c", "#5b5f69", "#1b6a3c")
_WIDTH, _NAME, _ROW = 640, 150, 30  # pixels


@dataclass(frozen=True, slots=True)
class Bar:
    """One value; `least` and `most` are its range over the trials."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None
    series: int = 0  # of the colour


def bar_chart(bars: Sequence[Bar], *, unit: str, digits: int = 1) -> str:
    """Draw horizontal bars from zero, each with its value and, where there is one, its range."""
    longest = max([bar.most or bar.value for bar in bars], default=0.0) or 1.0
    scale = (_WIDTH - _NAME - 130) / longest
    parts = []
    for i, bar in enumerate(bars):
        y = i * _ROW
        middle, right = y + 15, _NAME + bar.value * scale
        shown = f"{bar.value:.{digits}f} {unit}"
        if bar.least is not None and bar.most is not None:
            shown += f" [{bar.least:.{digits}f} - {bar.most:.{digits}f}]"
            left_end, right_end = _NAME + bar.least * scale, _NAME + bar.most * scale
            whisker = f"M{left_end:.1f} {middle}H{right_end:.1f}"
            right = max(right, right_end)
        else:
            whisker = ""
        parts.append(
            f'<text x="{_NAME - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.name)}</text>'
            f'<rect x="{_NAME}" y="{y + 5}" width="{max(1.0, bar.value * scale):.1f}" height="20" '
            f'rx="3" fill="{_colour(bar.series)}"/>'
            f'<path d="{whisker}" stroke="currentColor" stroke-width="1.5"/>'
            f'<text x="{right + 6:.1f}" y="{middle + 4}">{escape(shown)}</text>'
        )
    return _svg("".join(parts), height=len(bars) * _ROW)


def curve_chart(curves: Mapping[str, Mapping[float, float]], *, x: str, y: str) -> str:
    """Draw curves, x to y, that share both axes; points are the measured ones."""
    points = [point for curve in curves.values() for point in curve.items()]
    most_x = max([a for a, _ in points], default=0.0) or 1.0
    most_y = max([b for _, b in points], default=0.0) or 1.0
    height, left, bottom = 260, 60, 30

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = left + point[0] / most_x * (_WIDTH - left - 20)
        return across, height - bottom - point[1] / most_y * (height - bottom - 30)

    parts = [
        f'<path d="M{left} 20V{height - bottom}H{_WIDTH - 20}" stroke="currentColor" fill="none"/>',
        f'<text x="{left}" y="14">{escape(y)}, at most {most_y:.3g}</text>',
        f'<text x="{_WIDTH - 20}" y="{height - 8}" text-anchor="end">'
        f"{escape(x)}, at most {most_x:g}</text>",
    ]
    for i, (name, curve) in enumerate(curves.items()):
        places = [place(point) for point in sorted(curve.items())]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_colour(i)}"/>')
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{_colour(i)}"/>' for a, b in places
        ]
        parts.append(
            f'<rect x="{left + 16}" y="{28 + 18 * i}" width="10" height="10" fill="{_colour(i)}"/>'
            f'<text x="{left + 32}" y="{37 + 18 * i}">{escape(name)}</text>'
        )
    return _svg("".join(parts), height=height)


def page(title: str, parts: Sequence[str]) -> str:
    """Return an HTML page without any outside resource."""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n'
        "<style>:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}"
        "body{max-width:46rem;margin:2rem auto;padding:0 1rem}h1{font-size:1.3rem}"
        "h2{font-size:1rem;margin-top:2rem}svg{width:100%;height:auto}svg text{font-size:12px;"
        "fill:currentColor}pre{overflow:auto}</style>\n" + "\n".join(parts) + "\n</html>\n"
    )


def _svg(content: str, *, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {max(1, height)}" '
        f'role="img" font-family="sans-serif" font-size="12">{content}</svg>'
    )


def _colour(series: int) -> str:
    return _COLOURS[series % len(_COLOURS)]
