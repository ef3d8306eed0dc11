"""Exports spans to an OpenTelemetry collector: request, queue, prefill and decode."""

from typing import TYPE_CHECKING

from server.http.request_records import CompletionRecord, RequestRecord
from server.settings.schema import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

_NS = 1_000_000_000


def otlp_exporter(endpoint: str, *, service_name: str) -> "SpanExporter":
    """Return an exporter that sends batches over HTTP from a background thread.

    Raises SettingsError without the packages of the extra [otel].
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(
            f"observability.otlp_endpoint: found {endpoint}, but {error.name} is not installed; "
            "accepted: null, or install it with pip install -e '.[otel]'"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": service_name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return SpanExporter(provider=provider)


class SpanExporter:
    """Exports one span per request with three child spans per completion.

    A listener of RequestRecorder. A request with a traceparent header joins that trace. Spans are
    created after the request, with its recorded times.
    """

    def __init__(self, *, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("dspark")
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, record: RequestRecord) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        span = self._tracer.start_span(
            f"{record.method} {record.path}",
            context=self._propagator.extract(record.trace_headers),
            kind=SpanKind.SERVER,
            start_time=_ns(record.started_at),
            attributes={
                "http.request.method": record.method,
                "url.path": record.path,
                "http.response.status_code": record.status,
                "dspark.request_id": record.request_id,
            },
        )
        for completion in record.completions:
            self._add_stages(span, completion)
        if record.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_ns(record.started_at + record.seconds))

    def close(self) -> None:
        """Send pending spans."""
        self._provider.shutdown()

    def _add_stages(self, parent: "Span", completion: CompletionRecord) -> None:
        from opentelemetry.trace import set_span_in_context

        finish, begin = completion.finish, completion.submitted_at
        attributes: dict[str, AttributeValue] = {
            "gen_ai.usage.input_tokens": finish.num_prompt_tokens,
            "gen_ai.usage.output_tokens": finish.num_output_tokens,
            "gen_ai.response.finish_reasons": [finish.reason.value],
            "dspark.cached_tokens": finish.num_cached_tokens,
            "dspark.accept_length": finish.speculation.mean_accept_length,
        }
        context = set_span_in_context(parent)
        for name, seconds in (
            ("queue", finish.queue_seconds),
            ("prefill", finish.prefill_seconds),
            ("decode", finish.decode_seconds),
        ):
            stage = self._tracer.start_span(
                name, context=context, start_time=_ns(begin), attributes=attributes
            )
            begin += seconds
            stage.end(_ns(begin))


def _ns(seconds: float) -> int:
    return round(seconds * _NS)
