"""Formats tables of arms, one column each: counts, rates, latencies, acceptance, stages."""

from collections.abc import Iterable, Sequence

from dspark.bench.report.columns import Row, columns, number
from dspark.bench.workloads.summary import ArmSummary

_COUNTS = ("requests", "input_tokens", "output_tokens", "cached_tokens", "preemptions")
_DRAFT_COUNTS = ("drafts", "draft_tokens", "accepted_tokens", "withheld_draft_tokens")
_BY_SOURCE = (
    "draft_rounds_percent",
    "draft_accept_length",
    "lookup_rounds_percent",
    "lookup_accept_length",
    "target_rounds_percent",
)
_LABELS = {
    "requests": "requests",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "cached_tokens": "input tokens from the prefix cache",
    "preemptions": "preemptions",
    "duration_s": "duration, s",
    "requests_per_s": "request throughput, 1/s",
    "tokens_per_s": "output tokens/s, end to end",
    "decode_tokens_per_s": "output tokens/s of a request, decode only",
    "total_tokens_per_s": "total tokens/s (input and output)",
    "accept_length": "accept length (bonus included)",
    "accept_rate_percent": "draft tokens accepted, %",
    "draft_rounds_percent": "rounds of the draft model, %",
    "draft_accept_length": "accept length of the draft model",
    "lookup_rounds_percent": "rounds of lookups, %",
    "lookup_accept_length": "accept length of lookups",
    "target_rounds_percent": "rounds without draft tokens, %",
    "drafts": "drafts",
    "draft_tokens": "draft tokens",
    "accepted_tokens": "accepted draft tokens",
    "withheld_draft_tokens": "draft tokens withheld by the draft budget",
}
_RATES = (
    "duration_s",
    "requests_per_s",
    "tokens_per_s",
    "decode_tokens_per_s",
    "total_tokens_per_s",
)
_LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT (without the first token)",
    "itl": "ITL (between events)",
    "e2e": "end-to-end latency",
}
_MOMENTS = {"mean": "mean", "p50": "median", "p99": "p99"}


def arm_tables(arms: Sequence[ArmSummary]) -> list[str]:
    """Return both tables, each followed by a blank line."""
    return [*arm_table(arms), "", *stage_table(arms), ""]


def arm_table(arms: Sequence[ArmSummary]) -> list[str]:
    """Return the table of metrics: median [min - max]."""
    return columns(
        [
            ("", *(arm.name for arm in arms)),
            *_metric_rows(arms, _COUNTS),
            *_metric_rows(arms, _RATES),
            *_latency_rows(arms),
            *_metric_rows(
                arms, ("accept_length", "accept_rate_percent", *_BY_SOURCE, *_DRAFT_COUNTS)
            ),
            ("accepted at positions 1, 2, ..., %", *map(_positions, arms)),
        ]
    )


def stage_table(arms: Sequence[ArmSummary]) -> list[str]:
    """Return the share of each stage, and its ms per step."""
    rows: list[Row] = [("share of the time (host clock)", *(arm.name for arm in arms))]
    for stage in arms[0].stages:
        shares = [arm.stages[stage] for arm in arms]
        rows.append((stage, *(f"{s.percent:.1f} %  {s.ms_per_step:8.3f} ms" for s in shares)))
    return columns(rows)


def _metric_rows(arms: Sequence[ArmSummary], names: Iterable[str]) -> list[Row]:
    return [(_LABELS[name], *(number(arm.spread(name)) for arm in arms)) for name in names]


def _latency_rows(arms: Sequence[ArmSummary]) -> list[Row]:
    return [
        (f"{label}, {text}, ms", *(number(arm.spread(f"{name}_ms_{moment}")) for arm in arms))
        for name, label in _LATENCIES.items()
        for moment, text in _MOMENTS.items()
    ]


def _positions(arm: ArmSummary) -> str:
    return " ".join(f"{percent:.0f}" for percent in arm.accepted_percent_per_position) or "-"
