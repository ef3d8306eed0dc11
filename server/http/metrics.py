"""Counts and times requests; renders all metrics as Prometheus text.

Names and labels are vLLM's under the prefix `dspark:`, so that a dashboard ports by find and
replace. Metrics without a counterpart there follow the same style.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine import ContextKVStatus, EngineSnapshot, Finish, TokenEvent

_PREFIX = "dspark:"
_VLLM = "vllm:"
_ALIASED = frozenset(
    f"{_PREFIX}spec_decode_num_{name}"
    for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_LENGTHS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0, 16.0)

# (name, buckets, help), observed once or more per completion.
_HISTOGRAMS: tuple[tuple[str, tuple[float, ...], str], ...] = (
    ("time_to_first_token_seconds", _SLOW, "From submission to the first token."),
    (
        "inter_token_latency_seconds",
        _FAST,
        "Between two commits of a completion. A commit of several tokens counts once: "
        "per token see request_time_per_output_token_seconds.",
    ),
    (
        "request_time_per_output_token_seconds",
        _FAST,
        "From the first token to the last, divided by the tokens after the first.",
    ),
    ("e2e_request_latency_seconds", _SLOW, "From submission to the end."),
    ("request_queue_time_seconds", _SLOW, "From submission to the first step."),
    ("request_prefill_time_seconds", _SLOW, "From the first step to the first token."),
    ("request_decode_time_seconds", _SLOW, "From the first token to the end."),
    ("request_accept_length", _LENGTHS, "Mean tokens per round of a completion, bonus included."),
)

_OUTCOMES = ("ok", "client_error", "overloaded", "timeout", "cancelled", "server_error")


def outcome_of(status: int) -> str:
    """Return the outcome label of an HTTP status."""
    if status < 400:
        return "ok"
    if status in (408, 504):
        return "timeout"
    if status == 429:
        return "overloaded"
    if status == 499:
        return "cancelled"
    return "client_error" if status < 500 else "server_error"


class ServerMetrics:
    """The server's metrics, in a separate registry."""

    def __init__(self, *, replica: str | None = None) -> None:
        """replica: a label of every sample; None: no such label."""
        self._replica = replica
        self._registry = CollectorRegistry()
        self._histograms = {
            name: Histogram(_PREFIX + name, text, buckets=buckets, registry=self._registry)
            for name, buckets, text in _HISTOGRAMS
        }
        self._requests = Counter(
            f"{_PREFIX}requests",
            "HTTP requests for completions, by outcome.",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in _OUTCOMES:
            self._requests.labels(outcome)  # export zero, so that the first increase is visible

    def count_request(self, status: int) -> None:
        self._requests.labels(outcome_of(status)).inc()

    def observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def timer(self) -> "RequestTimer":
        return RequestTimer(metrics=self)

    def render(
        self,
        *,
        snapshot: EngineSnapshot | None,
        status: ContextKVStatus | None,
        is_healthy: bool,
        with_aliases: bool = False,
    ) -> bytes:
        """Return the exposition text; engine metrics only where there is a snapshot or status.

        With with_aliases the counters of speculation also have vLLM's own names.
        """
        families = list(_engine_metrics(snapshot)) if snapshot is not None else []
        if with_aliases:
            families += [_alias(family) for family in families if family.name in _ALIASED]
        if status is not None:
            families.append(_context_kv_metric(status))
        families.append(_gauge("engine_up", "1 while the step loop runs.", float(is_healthy)))
        families = [*self._registry.collect(), *families]
        if self._replica is not None:
            families = [_labelled(family, self._replica) for family in families]
        return generate_latest(_Rendered(families))


class RequestTimer:
    """Times one completion from the timer's creation."""

    def __init__(self, *, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._start = time.perf_counter()
        self._first: float | None = None
        self._last = self._start

    def observe(self, event: TokenEvent) -> float:
        """Record an event's times; return the seconds from the start to its commit."""
        now = event.at
        if event.token_ids:
            name = "inter_token_latency_seconds"
            if self._first is None:
                self._first, name = now, "time_to_first_token_seconds"
            self._metrics.observe(name, now - self._last)
            self._last = now
        if event.finish is not None:
            self._observe_finish(event.finish, now - self._start)
        return now - self._start

    def _observe_finish(self, finish: Finish, seconds: float) -> None:
        observe = self._metrics.observe
        observe("e2e_request_latency_seconds", seconds)
        observe("request_queue_time_seconds", finish.queue_seconds)
        observe("request_prefill_time_seconds", finish.prefill_seconds)
        observe("request_decode_time_seconds", finish.decode_seconds)
        if self._first is not None and finish.num_output_tokens > 1:
            per_token = (self._last - self._first) / (finish.num_output_tokens - 1)
            observe("request_time_per_output_token_seconds", per_token)
        if finish.speculation.num_rounds:
            observe("request_accept_length", finish.speculation.mean_accept_length)


def mean_accept_length(snapshot: EngineSnapshot) -> float:
    """Return tokens per round since start, bonus included; 0.0 before the first round."""
    if not snapshot.num_rounds:
        return 0.0
    return 1 + snapshot.num_accepted_tokens / snapshot.num_rounds


def _alias(family: Metric) -> Metric:
    """Return a counter under vLLM's own name."""
    alias = Metric(family.name.replace(_PREFIX, _VLLM, 1), family.documentation, "counter")
    for sample in family.samples:
        alias.add_sample(sample.name.replace(_PREFIX, _VLLM, 1), sample.labels, sample.value)
    return alias


def _labelled(family: Metric, replica: str) -> Metric:
    """Add the label `replica` to every sample."""
    family.samples = [
        sample._replace(labels={**sample.labels, "replica": replica}) for sample in family.samples
    ]
    return family


class _Rendered(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _engine_metrics(snapshot: EngineSnapshot) -> Iterator[Metric]:
    s = snapshot
    position = {str(i): float(n) for i, n in enumerate(s.accepted_per_position)}
    yield _counter("steps", "Steps of the engine.", s.num_steps)
    yield _counter("spec_decode_num_drafts", "Draft blocks that were verified.", s.num_rounds)
    yield _counter("spec_decode_num_draft_tokens", "Draft tokens verified.", s.num_draft_tokens)
    yield _counter(
        "spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", s.num_accepted_tokens
    )
    yield _counters(
        "spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens, by position in the block.",
        "position",
        position,
    )
    for name, text, field in (
        ("rounds", "Decode rounds", "num_rounds"),
        ("draft_tokens", "Draft tokens verified", "num_draft_tokens"),
        ("accepted_tokens", "Draft tokens accepted", "num_accepted"),
    ):
        yield _counters(
            f"spec_decode_num_{name}_by_source",
            f"{text}, by source: draft model, lookup, target (plain decoding).",
            "source",
            {source: float(getattr(counts, field)) for source, counts in s.sources.items()},
        )
    yield _counters(
        "spec_decode_num_plain_rounds",
        "Decode rounds without draft tokens, by reason.",
        "reason",
        s.plain_rounds,
    )
    yield _counter(
        "spec_decode_num_withheld_draft_tokens",
        "Draft tokens not verified because they would not pay at the current load.",
        s.num_withheld_draft_tokens,
    )
    yield _counter(
        "spec_decode_num_capped_rounds",
        "Rounds, without a draft too, of requests that set a lower num_draft_tokens.",
        s.num_capped_rounds,
    )
    yield _counter("prompt_tokens", "Prompt tokens.", s.num_prompt_tokens)
    yield _counter("generation_tokens", "Output tokens.", s.num_output_tokens)
    yield _counters(
        "generation_tokens_by_source",
        "Output tokens: accepted draft tokens, and those that the target generated itself.",
        "source",
        {
            **{name: c.num_accepted for name, c in s.sources.items() if name != "target"},
            "target": s.num_output_tokens - s.num_accepted_tokens,
        },
    )
    yield _counter(
        "prefix_cache_queries", "Prompt tokens looked up in the cache.", s.num_prompt_tokens
    )
    yield _counter("prefix_cache_hits", "Prompt tokens found in the cache.", s.num_cached_tokens)
    yield _counter(
        "num_preemptions",
        "Sequences whose pages were taken and recomputed later.",
        s.num_preemptions,
    )
    yield _counter(
        "processed_logit_rows",
        "Rows of logits changed by logits processors, once per processor.",
        s.num_processed_rows,
    )
    yield _counter(
        "logprob_rows", "Rows whose log probabilities were returned.", s.num_logprob_rows
    )
    yield _counters(
        "request_success", "Finished completions, by reason.", "finished_reason", s.finished
    )
    yield _counters("stage_seconds", "Time by stage of the step.", "stage", s.stage_seconds)
    yield _gauge("num_requests_running", "Running sequences.", s.num_running)
    yield _gauge("num_requests_waiting", "Requests in the queue.", s.num_waiting)
    yield _gauge(
        "kv_cache_usage_perc",
        "Pages held by sequences, as a fraction of all; 1 is full.",
        s.num_used_pages / s.num_pages if s.num_pages else 0.0,
    )
    pages = GaugeMetricFamily(
        f"{_PREFIX}kv_pages", "Pages of the KV pool, by state.", labels=["state"]
    )
    free = s.num_pages - s.num_used_pages - s.num_cached_pages
    for state, count in (
        ("used", s.num_used_pages),
        ("cached", s.num_cached_pages),
        ("free", free),
    ):
        pages.add_metric([state], count)
    yield pages
    yield _gauge(
        "spec_decode_mean_accept_length",
        "Tokens per round since start, bonus included.",
        mean_accept_length(s),
    )
    yield _gauge(
        "spec_decode_is_parked",
        "1 while speculation is suspended because no draft of any source pays at the current load.",
        float(s.is_suspended),
    )
    yield _gauge(
        "spec_decode_has_collapsed",
        "1 while recent acceptance does not pay for the draft.",
        float(s.has_collapsed),
    )
    yield _gauge(
        "seconds_since_progress", "Since the engine's last step.", s.seconds_since_progress
    )


def _context_kv_metric(status: ContextKVStatus) -> Metric:
    family = GaugeMetricFamily(
        f"{_PREFIX}context_kv_path",
        "1 for the active path of the context-KV writer.",
        labels=["path", "mode"],
    )
    for path in ("stacked", "per_layer", "none"):
        family.add_metric([path, status.mode], float(path == status.path))
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)
