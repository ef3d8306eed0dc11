"""Draws the measured cost table that the draft budget decides with."""

from collections.abc import Mapping
from typing import Any

from dspark.bench.report.charts import curve_chart
from engine import LoadError

_CURVES = {
    "pass_ms_by_rows": "target pass, by rows",
    "single_row_pass_ms_by_sequences": "target pass of single rows, by sequences",
    "draft_ms_by_sequences": "draft pass, by sequences",
}


def cost_picture(details: Mapping[str, Any]) -> str:
    """Return an SVG of the costs. Raises LoadError where no costs were measured.

    details: of the engine's info.
    """
    budget = (details["draft"] or {}).get("budget", {})
    curves: dict[str, Mapping[float, float]] = {
        name: {float(size): ms for size, ms in budget[field].items()}
        for field, name in _CURVES.items()
        if budget.get(field)
    }
    if not curves:
        raise LoadError(
            "no costs were measured; they are with a draft and speculative.draft_budget auto"
        )
    return curve_chart(curves, x="rows or sequences", y="ms")
