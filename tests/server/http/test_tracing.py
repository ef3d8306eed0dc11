"""SpanExporter: spans as a collector gets them."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.testclient import TestClient

from engine import EngineDead
from server.http.tracing import SpanExporter, otlp_exporter
from server.settings.schema import SettingsError
from tests.support.server.fakes import FakeEngine, app_with

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(engine: FakeEngine, body: dict[str, object], **headers: str) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = SpanExporter(provider=provider)
    client = TestClient(app_with(engine, listeners=[traces]))
    client.post("/generate", json=body, headers=headers)
    traces.close()
    return list(exporter.get_finished_spans())


def test_a_request_is_a_span_with_three_stages_per_completion() -> None:
    *stages, request = spans_of(FakeEngine("hello"), {"text": ["a", "b"]})
    assert request.name == "POST /generate"
    assert request.kind is SpanKind.SERVER
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    assert [s.name for s in stages] == ["queue", "prefill", "decode"] * 2
    assert all(s.parent == request.context for s in stages)
    for span, seconds in zip(stages, (0.001, 0.002, 0.003) * 2, strict=True):
        assert span.start_time is not None
        assert span.end_time is not None
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(seconds, abs=1e-6)
        assert span.attributes is not None
        assert span.attributes["gen_ai.usage.output_tokens"] == 6
    assert stages[0].end_time == stages[1].start_time
    assert "hello" not in "".join(span.to_json() for span in [*stages, request])


def test_a_request_joins_the_trace_of_its_traceparent() -> None:
    (span,) = spans_of(FakeEngine(), {"text": ""}, traceparent=f"00-{TRACE}-{PARENT}-01")
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.status.status_code is StatusCode.UNSET  # a caller's mistake is no error of ours


def test_a_server_error_sets_the_error_status() -> None:
    (span,) = spans_of(FakeEngine(refusal=EngineDead("gone")), {"text": "hi"})
    assert span.status.status_code is StatusCode.ERROR


def test_spans_arrive_at_the_collector() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        traces = otlp_exporter(endpoint, service_name="tiny")
        client = TestClient(app_with(FakeEngine(), listeners=[traces]))
        client.post("/generate", json={"text": "hi"}, headers={"x-request-id": "the-one"})
        traces.close()
        collector.shutdown()
        thread.join()
    assert received[0][0] == "/v1/traces"
    assert b"the-one" in received[0][1]


def test_without_the_packages_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"otlp_endpoint: .*is not installed.*\[otel\]"):
        otlp_exporter("http://127.0.0.1:1/v1/traces", service_name="tiny")
