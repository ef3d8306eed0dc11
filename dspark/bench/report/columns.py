"""Formats aligned columns, and numbers with their range."""

from collections.abc import Sequence

from dspark.bench.report.statistics import Spread

Row = tuple[str, ...]


def columns(rows: Sequence[Row]) -> list[str]:
    """Align the first column left and the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def number(spread: Spread | None, *, unit: str = "") -> str:
    """Format a measured number: median, and the range if there is one."""
    if spread is None:
        return "-"
    middle = digits(spread.median)
    if spread.low == spread.high:
        return f"{middle}{unit}"
    return f"{middle}{unit} [{digits(spread.low)} - {digits(spread.high)}]"


def digits(value: float) -> str:
    """Format with four significant digits; integers in full."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
