"""Compares measurements with the aims; a missed aim is reported and is no failure."""

from collections.abc import Iterator, Mapping, Sequence

from dspark.bench.gpu.results import Row, Table


def aims(tables: Mapping[str, Sequence[Row]]) -> Iterator[Table]:
    """Yield one table of the aims that were measured."""
    rows: list[Row] = [
        {"aim": aim, "wanted": wanted, "found": found}
        for aim, wanted, found in (
            ("fused context write of 8 tokens, times as fast", "4 or more", _write(tables)),
            (
                "verify pass at batch 1, times a reading of its weights",
                "1.25 or less",
                _pass(tables),
            ),
            ("graphs at batch 1, times as fast as eager", "1.5 or more", _graphs(tables)),
            ("target pass at batch 1, ms", "3.6 or less", _number(tables, "rounds", "target_ms")),
            (
                "rest of a round at batch 1, ms",
                "0.45 or less",
                _number(tables, "rounds", "rest_ms"),
            ),
            ("sampled round at batch 1, times a greedy one", "1.1 or less", _sampled(tables)),
        )
        if found is not None
    ]
    if rows:
        yield Table("aims", rows)


def _write(tables: Mapping[str, Sequence[Row]]) -> float | None:
    row = _row(tables, "context write", "tokens", 8)
    return _ratio(row.get("per_layer_ms"), row.get("fused_ms"))


def _pass(tables: Mapping[str, Sequence[Row]]) -> float | None:
    return _ratio(1.0, _row(tables, "verify pass", "batch", 1).get("share_of_copy"))


def _graphs(tables: Mapping[str, Sequence[Row]]) -> float | None:
    eager, recorded = (
        _row(tables, title, "batch", 1).get("step_ms")
        for title in ("rounds without graphs", "rounds")
    )
    return _ratio(eager, recorded)


def _sampled(tables: Mapping[str, Sequence[Row]]) -> float | None:
    sampled, greedy = (_number(tables, t, "step_ms") for t in ("sampled rounds", "rounds"))
    return _ratio(sampled, greedy)


def _number(tables: Mapping[str, Sequence[Row]], title: str, column: str) -> float | None:
    found = _row(tables, title, "batch", 1).get(column)
    return found if isinstance(found, float) else None


def _row(tables: Mapping[str, Sequence[Row]], title: str, column: str, value: int) -> Row:
    return next((row for row in tables.get(title, ()) if row[column] == value), {})


def _ratio(above: float | str | None, below: float | str | None) -> float | None:
    if isinstance(above, float) and isinstance(below, float) and below > 0:
        return above / below
    return None
