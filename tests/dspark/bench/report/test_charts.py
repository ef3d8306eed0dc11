"""Charts are SVG whose lengths are in the ratio of their values."""

import re
from xml.etree import ElementTree

from dspark.bench.report.charts import Bar, bar_chart, curve_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_their_values_and_show_their_range() -> None:
    drawn = ElementTree.fromstring(bar_chart([Bar("a & b", 10, 5, 20), Bar("c", 5)], unit="tok/s"))
    widths = [float(rect.attrib["width"]) for rect in drawn.iter(f"{SVG}rect")]
    assert abs(widths[0] - 2 * widths[1]) < 0.2
    whisker = next(drawn.iter(f"{SVG}path")).attrib["d"]
    left, right = map(float, re.findall(r"[MH]([\d.]+)", whisker))
    assert abs((right - left) - 1.5 * widths[0]) < 0.2
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert texts == ["a & b", "10.0 tok/s [5.0 - 20.0]", "c", "5.0 tok/s"]


def test_curves_rise_where_their_values_do() -> None:
    drawn = ElementTree.fromstring(curve_chart({"x": {1: 1.0, 2: 3.0}}, x="rows", y="ms"))
    points = next(drawn.iter(f"{SVG}polyline")).attrib["points"].split()
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in points)
    assert x1 < x2
    assert y1 > y2
    assert len(list(drawn.iter(f"{SVG}circle"))) == 2
