"""Writes the result of a comparison as one self-contained HTML page."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from dspark.bench.report.charts import Bar, bar_chart, page

_SPEEDS = {
    "tokens_per_s": "Output tokens/s, end to end",
    "decode_tokens_per_s": "Output tokens/s, decode only",
}


def html_report(result: Mapping[str, Any], *, title: str) -> str:
    """Return the page: speeds by arm with ranges, acceptance by position, the round's stages.

    result is the JSON object that `dspark bench --compare` prints.
    """
    return page(title, list(_parts(result, title)))


def _parts(result: Mapping[str, Any], title: str) -> Iterator[str]:
    arms: Mapping[str, Mapping[str, Any]] = result["arms"]
    yield f"<h1>{escape(title)}</h1>"
    yield f"<p>{'The arms agree as they must.' if result['holds'] else 'A promise is broken.'}</p>"
    for figure, heading in _SPEEDS.items():
        bars = [
            Bar(name, spread["median"], spread["min"], spread["max"], series)
            for series, (name, arm) in enumerate(arms.items())
            if (spread := arm.get(figure)) is not None
        ]
        yield f"<h2>{heading}</h2>{bar_chart(bars, unit='tok/s')}"
    for series, (name, arm) in enumerate(arms.items()):
        shares = arm.get("accepted_percent_per_position") or []
        if any(shares):
            bars = [Bar(f"position {i}", share, series=series) for i, share in enumerate(shares, 1)]
            heading = f"Acceptance by position: {escape(name)}"
            yield f"<h2>{heading}</h2>{bar_chart(bars, unit='%', digits=0)}"
    for series, (name, arm) in enumerate(arms.items()):
        stages = arm.get("stages") or {}
        bars = [
            Bar(stage, values["ms_per_step"], series=series) for stage, values in stages.items()
        ]
        if bars:
            yield f"<h2>A step's time: {escape(name)}</h2>{bar_chart(bars, unit='ms', digits=2)}"
    for note in result.get("notes", ()):
        yield f"<p>{escape(note)}</p>"
    circumstances = {k: v for k, v in result.items() if k not in ("arms", "notes")}
    text = escape(json.dumps(circumstances, indent=1, ensure_ascii=False))
    yield f"<details><summary>Circumstances</summary><pre>{text}</pre></details>"
