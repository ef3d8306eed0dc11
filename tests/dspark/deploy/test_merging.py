"""What the client sees of several replicas' answers."""

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dspark.deploy.merging import (
    _JOINED,
    _PROBES,
    Answer,
    check_replica_of_abort,
    is_joined,
    join,
    join_metrics,
)
from server.errors.api_errors import ApiError
from server.http.metrics import ServerMetrics
from tests.support.server.fakes import FakeEngine, app_with

LIVE = {"num_rounds": 10, "num_draft_tokens": 40, "num_accepted_tokens": 20, "is_parked": False,
        "seconds_since_progress": 0.5, "finished": {"stop": 1}, "accepted_per_position": [3, 1],
        "accept_length": 3.0, "accept_rate": 0.5}  # fmt: skip


def answer(replica: str, body: Any, *, status: int = 200) -> Answer:
    headers = ((b"content-type", b"application/json"),)
    return Answer(replica, 1, status, headers, json.dumps(body).encode())


def joined(path: str, *answers: Answer) -> tuple[int, Any]:
    result = join(path, answers)
    return result.status, json.loads(result.body)


def failure(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def test_health_is_good_while_one_replica_is() -> None:
    bad = answer("b", failure("the engine has died"), status=503)
    status, body = joined("/health", bad, answer("a", {"status": "ok"}))
    assert status == 200
    assert body == {"status": "ok", "replicas": {"b": "the engine has died", "a": "ok"}}
    assert joined("/health", bad)[0] == 503


def test_counts_are_added_and_failures_returned() -> None:
    one, two = answer("a", {"aborted": 1}), answer("b", {"aborted": 2})
    assert joined("/abort_request", one, two) == (200, {"aborted": 3})
    refused = answer("b", failure("needs an admin key"), status=403)
    assert joined("/abort_request", one, refused) == (403, failure("needs an admin key"))


def test_every_replica_is_a_rank_of_loads() -> None:
    load = {"timestamp": 1.0, "dp_rank_count": 1, "loads": [{"dp_rank": 0, "n": 1}]}
    _, body = joined("/v1/loads", answer("a", load), answer("b", load))
    assert (body["dp_rank_count"], [each["dp_rank"] for each in body["loads"]]) == (2, [0, 1])


def test_server_info_has_sums_and_each_replica() -> None:
    info = {"version": "1", "uptime_s": 1.0, "engine": {}, "context_kv": None, "live": LIVE}
    other = {**info, "uptime_s": 9.0, "live": {**LIVE, "num_accepted_tokens": 0, "num_rounds": 30}}
    _, body = joined("/server_info", answer("a", info), answer("b", other))
    live = body["live"]
    assert (live["num_rounds"], live["num_accepted_tokens"], live["finished"]) == (
        40,
        20,
        {"stop": 2},
    )
    assert (live["accept_length"], live["accept_rate"], live["accepted_per_position"]) == (
        1.5,
        0.25,
        [6, 2],
    )
    assert [each["replica"] for each in body["replicas"]] == ["a", "b"]
    assert body["replicas"][0]["live"] == LIVE
    assert body["uptime_s"] == 9.0


def test_metrics_of_replicas_are_one_exposition_with_a_label() -> None:
    texts = [
        ServerMetrics(replica=name).render(snapshot=None, status=None, is_healthy=True)
        for name in ("ra", "rb")
    ]
    families = {f.name: f for f in text_string_to_metric_families(join_metrics(texts).decode())}
    up = {s.labels["replica"]: s.value for s in families["dspark:engine_up"].samples}
    assert up == {"ra": 1.0, "rb": 1.0}
    assert all("replica" in s.labels for family in families.values() for s in family.samples)
    single = ServerMetrics().render(snapshot=None, status=None, is_healthy=True).decode()
    assert {f.name for f in text_string_to_metric_families(single)} == set(families)


def test_headers_for_browsers_are_kept_and_preflights_go_to_one_replica() -> None:
    allowed = (b"access-control-allow-origin", b"https://a.example")
    one = Answer("a", 1, 200, (*answer("a", {}).headers, allowed), b'{"status": "ok"}')
    assert allowed in join("/health", [one]).headers
    assert not is_joined("OPTIONS", "/health")


def test_an_abort_is_refused_for_an_ended_replica_only_if_nothing_was_aborted() -> None:
    body = json.dumps({"rid": "batch_responses-17"}).encode()
    check_replica_of_abort(body, [answer("a", {"aborted": 1}), answer("b", {"aborted": 0})])
    with pytest.raises(ApiError, match="its replica responses has ended"):
        check_replica_of_abort(body, [answer("a", {"aborted": 0})])


def test_the_joined_routes_exist_in_the_server() -> None:
    paths = set(app_with(FakeEngine()).openapi()["paths"])
    assert {path for path in paths if is_joined("GET", path)} == {*_JOINED, *_PROBES, "/metrics"}
    assert not is_joined("GET", "/v1/models")
