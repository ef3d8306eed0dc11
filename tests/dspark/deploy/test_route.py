"""Requests that begin alike get keys alike, whatever the route and the order of fields."""

import json
from typing import Any

import pytest

from dspark.deploy.prefix_routing import block_keys
from dspark.deploy.route import replica_name, replica_of, route_of

SYSTEM = {"role": "system", "content": "You answer questions about bicycles. " * 20}
ID = "rk3j9x0aq-8d7c2a9e4f1b"


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def chat(*messages: dict[str, str], **fields: Any) -> bytes:
    return body(model="m", messages=[SYSTEM, *messages], **fields)


def num_shared(one: bytes, two: bytes) -> int:
    first, second = (route_of("/v1/chat/completions", each).keys for each in (one, two))
    return sum(a == b for a, b in zip(first, second, strict=False))


def test_a_conversation_keeps_the_keys_of_its_turns() -> None:
    question = {"role": "user", "content": "Which one is red? " * 10}
    answer = {"role": "assistant", "content": "The third."}
    first = chat(question)
    keys = route_of("/v1/chat/completions", first).keys
    assert num_shared(first, chat(question, answer, temperature=0.5)) >= len(keys) - 1
    assert len(keys) > 10


def test_other_fields_before_the_messages_change_nothing() -> None:
    one = body(temperature=0.5, seed=1, messages=[SYSTEM])
    two = body(stream=True, messages=[SYSTEM])
    assert route_of("/v1/chat/completions", one).keys == route_of("/x", two).keys != ()


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "p" * 200},
        {"prompt": list(range(100))},
        {"text": "p" * 200},
        {"input_ids": list(range(100))},
        {"model": "m", "system": "s" * 200, "messages": []},
        {"input": "p" * 200, "text": {"format": {"type": "text"}}},
        {"text": {"format": {"type": "text"}}, "input": "p" * 200},
    ],
)
def test_every_field_with_text_is_found(fields: dict[str, Any]) -> None:
    assert len(route_of("/v1/responses", body(**fields)).keys) >= 3


def test_words_inside_a_string_are_no_fields() -> None:
    inside = '{"messages": ["' + "x" * 500
    assert route_of("/v1/completions", body(user=inside)).keys == ()
    named = json.dumps({"previous_response_id": f"resp_{ID}"})
    assert route_of("/v1/responses", body(input=named)).replica is None


def test_a_body_that_is_no_json_has_no_route() -> None:
    route = route_of("/v1/completions", b"\xff\x00" * 100)
    assert (route.keys, route.replica) == ((), None)


def test_a_large_body_is_read_at_its_beginning_alone() -> None:
    assert len(route_of("/generate", body(text="x" * 8_000_000)).keys) == 1024


def test_ids_name_their_replica() -> None:
    name = replica_name("k3j9x0aq")
    for given in (f"resp_{ID}", f"chatcmpl-{ID}", f"msg_{ID}", ID, f"{ID}-0"):
        assert replica_of(given) == name
    for other in ("resp_8d7c2a9e4f1b", "3f2a9c1b-8d7c-4f1b-9e2a-8d7c2a9e4f1b", "mine", ""):
        assert replica_of(other) is None


def test_a_request_about_a_response_goes_to_its_replica() -> None:
    for path in (f"/v1/responses/resp_{ID}", f"/v1/responses/resp_{ID}/cancel"):
        assert route_of(path, b"").replica == "rk3j9x0aq"
    following = body(model="m", previous_response_id=f"resp_{ID}", input="more")
    assert route_of("/v1/responses", following).replica == "rk3j9x0aq"
    reference = body(input=[{"type": "item_reference", "id": f"msg_{ID}"}])
    assert route_of("/v1/responses", reference).replica == "rk3j9x0aq"
    assert route_of("/v1/chat/completions", following).replica is None


def test_equal_texts_have_the_keys_of_the_text_itself() -> None:
    assert route_of("/generate", b'{"text": "' + b"y" * 640).keys[:2] == block_keys('"' + "y" * 127)
