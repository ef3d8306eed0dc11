"""Computes the metrics of one trial of one server: throughput, TTFT, TPOT, ITL."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dspark.bench.http.streamed_request import RequestRecord
from dspark.bench.report.statistics import latency_ms

# Metrics that need the token counts of the server; left out without them.
COUNTED = (
    "total_input_tokens",
    "total_generated_tokens",
    "output_throughput",
    "total_token_throughput",
)


@dataclass(frozen=True, slots=True)
class ServedTrial:
    """All requests of one trial, in the order of their prompts."""

    records: tuple[RequestRecord, ...]
    seconds: float  # from the first request out to the last event in
    cache_flushed: bool  # the server confirmed it before the trial
    client_cpu_s: float  # CPU time of this client, which may share the machine with the server

    @classmethod
    def of(
        cls, records: Sequence[RequestRecord], *, cache_flushed: bool, client_cpu_s: float = 0.0
    ) -> "ServedTrial":
        ordered = sorted(records, key=lambda record: record.prompt)
        started = min(record.started_at for record in records)
        ended = max((t for record in records for t in record.event_times), default=started)
        return cls(tuple(ordered), ended - started, cache_flushed, client_cpu_s)

    @property
    def answered(self) -> list[RequestRecord]:
        return [record for record in self.records if record.failure is None]

    @property
    def has_counts(self) -> bool:
        """Whether the server reported the tokens of every answer."""
        counts = [record.usage.num_output_tokens for record in self.answered]
        return bool(counts) and None not in counts

    @property
    def num_cached_tokens(self) -> int:
        return sum(record.usage.num_cached_tokens or 0 for record in self.answered)

    @property
    def is_known_to_be_cold(self) -> bool:
        """Whether the server confirmed an empty prefix cache, or reported no cached tokens."""
        counts = [record.usage.num_cached_tokens for record in self.answered]
        return self.cache_flushed or all(count == 0 for count in counts)

    def failures(self) -> Counter[tuple[str, str]]:
        """Count the failures by kind and detail."""
        found = [record.failure for record in self.records if record.failure is not None]
        return Counter((failure.kind, failure.detail) for failure in found)


def trial_metrics(trial: ServedTrial) -> dict[str, float]:
    """Return every known metric of a trial; times in ms, rates in 1/s."""
    answered, seconds = trial.answered, trial.seconds
    metrics: dict[str, float] = {
        "completed": len(answered),
        "failed": len(trial.records) - len(answered),
        "duration_s": seconds,
        "peak_concurrent_requests": peak_concurrency(trial.records),
    }
    if not answered:
        return metrics
    metrics["request_throughput"] = len(answered) / seconds
    metrics["client_cpu_percent"] = 100 * trial.client_cpu_s / seconds
    num_events = sum(len(record.event_times) for record in answered)
    metrics["client_cpu_us_per_event"] = 1e6 * trial.client_cpu_s / num_events
    if trial.has_counts:
        metrics |= _counted(answered, seconds)
    metrics |= latency_ms("ttft", [record.ttft for record in answered])
    if tpots := [record.tpot for record in answered if record.tpot is not None]:
        metrics |= latency_ms("tpot", tpots)
    if gaps := [gap for record in answered for gap in record.inter_event_times]:
        metrics |= latency_ms("itl", gaps)
    return {**metrics, **latency_ms("e2el", [record.e2e for record in answered])}


def peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """Return the largest number of requests open at once."""
    moments = [(record.started_at, 1) for record in records]
    moments += [(record.event_times[-1], -1) for record in records if record.event_times]
    is_open = peak = 0
    for _, change in sorted(moments):
        is_open += change
        peak = max(peak, is_open)
    return peak


def _counted(answered: Sequence[RequestRecord], seconds: float) -> dict[str, float]:
    num_output = sum(record.usage.num_output_tokens or 0 for record in answered)
    metrics: dict[str, float] = {
        "total_generated_tokens": num_output,
        "output_throughput": num_output / seconds,
    }
    inputs = [record.usage.num_input_tokens for record in answered]
    known = [count for count in inputs if count is not None]
    if len(known) == len(inputs):
        metrics["total_input_tokens"] = sum(known)
        metrics["total_token_throughput"] = (sum(known) + num_output) / seconds
    return metrics
