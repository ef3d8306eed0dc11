"""What one trial of one server says, in the figures that users of serving benchmarks know."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dspark.bench.http.streamed_request import Call
from dspark.bench.report.statistics import latency_ms

# Figures that need the server's own token counts; without them they are left out, never guessed.
COUNTED = (
    "total_input_tokens",
    "total_generated_tokens",
    "output_throughput",
    "total_token_throughput",
)


@dataclass(frozen=True, slots=True)
class ServedTrial:
    """All calls of one trial, in the order of their prompts."""

    calls: tuple[Call, ...]
    seconds: float  # from the first request out to the last event in
    has_forgotten: bool  # the server said that its prefix cache was empty at the start
    # That asking and reading took, of the machine that is measured, if it is one.
    client_cpu_s: float

    @classmethod
    def of(
        cls, calls: Sequence[Call], *, has_forgotten: bool, client_cpu_s: float = 0.0
    ) -> "ServedTrial":
        ordered = sorted(calls, key=lambda call: call.prompt)
        begun = min(call.started_at for call in calls)
        ended = max((t for call in calls for t in call.event_times), default=begun)
        return cls(tuple(ordered), ended - begun, has_forgotten, client_cpu_s)

    @property
    def answered(self) -> list[Call]:
        return [call for call in self.calls if call.failure is None]

    @property
    def has_counts(self) -> bool:
        """Whether the server told the tokens of every answer."""
        counts = [call.usage.num_output_tokens for call in self.answered]
        return bool(counts) and None not in counts

    @property
    def num_cached_tokens(self) -> int:
        return sum(call.usage.num_cached_tokens or 0 for call in self.answered)

    @property
    def is_known_to_be_cold(self) -> bool:
        """Whether the server said that it had no prefixes cached, or that it used none of them."""
        counts = [call.usage.num_cached_tokens for call in self.answered]
        return self.has_forgotten or all(count == 0 for count in counts)

    def failures(self) -> Counter[tuple[str, str]]:
        """How often which kind of failure came with which words."""
        found = [call.failure for call in self.calls if call.failure is not None]
        return Counter((failure.kind, failure.detail) for failure in found)


def served_figures(trial: ServedTrial) -> dict[str, float]:
    """Every number of one trial that can be told. Times in ms, rates in 1/s."""
    answered, seconds = trial.answered, trial.seconds
    figures: dict[str, float] = {
        "completed": len(answered),
        "failed": len(trial.calls) - len(answered),
        "duration_s": seconds,
        "peak_concurrent_requests": peak_open(trial.calls),
    }
    if not answered:
        return figures
    figures["request_throughput"] = len(answered) / seconds
    figures["client_cpu_percent"] = 100 * trial.client_cpu_s / seconds
    num_events = sum(len(call.event_times) for call in answered)
    figures["client_cpu_us_per_event"] = 1e6 * trial.client_cpu_s / num_events
    if trial.has_counts:
        figures |= _counted(answered, seconds)
    figures |= latency_ms("ttft", [call.ttft for call in answered])
    if tpots := [call.tpot for call in answered if call.tpot is not None]:
        figures |= latency_ms("tpot", tpots)
    if gaps := [gap for call in answered for gap in call.inter_event_times]:
        figures |= latency_ms("itl", gaps)
    return {**figures, **latency_ms("e2el", [call.e2e for call in answered])}


def peak_open(calls: Sequence[Call]) -> int:
    """The most requests that were open at once."""
    moments = [(call.started_at, 1) for call in calls]
    moments += [(call.event_times[-1], -1) for call in calls if call.event_times]
    is_open = peak = 0
    for _, change in sorted(moments):
        is_open += change
        peak = max(peak, is_open)
    return peak


def _counted(answered: Sequence[Call], seconds: float) -> dict[str, float]:
    num_output = sum(call.usage.num_output_tokens or 0 for call in answered)
    figures: dict[str, float] = {
        "total_generated_tokens": num_output,
        "output_throughput": num_output / seconds,
    }
    inputs = [call.usage.num_input_tokens for call in answered]
    known = [count for count in inputs if count is not None]
    if len(known) == len(inputs):
        figures["total_input_tokens"] = sum(known)
        figures["total_token_throughput"] = (sum(known) + num_output) / seconds
    return figures
