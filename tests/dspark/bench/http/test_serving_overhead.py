"""Measuring the overhead of the server."""

from dspark.bench.http.serving_overhead import measure_serving_overhead
from tests.support.server.byte_text import byte_codec


def test_the_overhead_is_measured_with_an_engine_that_replays() -> None:
    found = measure_serving_overhead(byte_codec(), "once more ", tokens_per_event=3)
    assert found.http_us.median > found.detokenising_us.median > 0
    values = found.values()
    assert values["http_tokens_per_event"] == 3
    detokenising, http = found.lines()
    assert detokenising.endswith("µs a token, timed alone")
    assert "an event of 3 tokens" in http
