"""A stream that loses its replica ends with an error event of its API."""

import json

from dspark.deploy.stream_errors import error_event
from server.errors.api_errors import Failure

ENDED = Failure(503, "the replica has ended", code="replica_ended")


def test_the_event_is_that_of_the_api() -> None:
    plain = error_event("/v1/chat/completions", ENDED, b"")
    assert plain.startswith(b"data: ")
    assert json.loads(plain[6:])["error"]["code"] == "replica_ended"
    anthropic = error_event("/v1/messages", ENDED, b"").splitlines()
    assert anthropic[0] == b"event: error"
    assert json.loads(anthropic[1][6:])["error"]["type"] == "overloaded_error"


def test_an_event_of_a_response_continues_the_numbers() -> None:
    before = b'event: x\ndata: {"sequence_number":7}\n\nevent: x\ndata: {"sequence_number":8}\n\n'
    name, data, *_ = error_event("/v1/responses", ENDED, before).splitlines()
    event = json.loads(data[6:])
    assert name == b"event: error"
    assert (event["sequence_number"], event["code"]) == (9, "replica_ended")
