"""In a deployment ids and metrics carry the name of the replica."""

from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine

NAME = "rk3j9x0aq"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def test_ids_of_every_route_begin_with_the_replica(connect: Connect) -> None:
    client = connect(replica=NAME)
    headers = {"x-request-id": "mine"}
    chat = client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert chat.json()["id"] == f"chatcmpl-{NAME}-mine"
    assert chat.headers["x-request-id"] == "mine"
    native = client.post("/generate", json={"text": "hi"}).json()
    assert native["meta_info"]["id"].startswith(f"{NAME}-")
    named = client.post("/generate", json={"text": "hi", "rid": "my-own"}).json()
    assert named["meta_info"]["id"] == "my-own"
    message = client.post("/v1/messages", json={**CHAT, "max_tokens": 4}).json()
    assert message["id"].startswith(f"msg_{NAME}-")
    response = client.post("/v1/responses", json={"model": "tiny", "input": "hi"}).json()
    assert response["id"].startswith(f"resp_{NAME}-")
    assert response["output"][0]["id"].startswith(f"msg_{NAME}-")
    items = client.get(f"/v1/responses/{response['id']}/input_items").json()["data"]
    assert items[0]["id"].startswith(f"item_{NAME}-")


def test_a_server_alone_has_plain_ids(connect: Connect) -> None:
    client = connect()
    chat = client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "mine"})
    assert chat.json()["id"] == "chatcmpl-mine"
    assert "replica" not in client.get("/metrics").text


def test_every_metric_has_the_label(connect: Connect) -> None:
    client = connect(FakeEngine(), replica=NAME)
    client.post("/generate", json={"text": "x"})
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    assert len(families) > 20
    assert {s.labels.get("replica") for f in families for s in f.samples} == {NAME}
