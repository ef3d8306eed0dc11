"""What the server adds around an engine."""

from dspark.bench.http.serving_overhead import measure_front
from tests.support.server.byte_text import byte_codec


def test_the_servers_share_is_timed_with_an_engine_that_only_replays() -> None:
    found = measure_front(byte_codec(), "say it again ", tokens_per_event=3)
    assert found.http_us.median > found.detokenising_us.median > 0
    values = found.values()
    assert values["http_tokens_per_event"] == 3
    detokenising, http = found.lines()
    assert detokenising.endswith("µs a token, timed alone")
    assert "an event of 3 tokens" in http
