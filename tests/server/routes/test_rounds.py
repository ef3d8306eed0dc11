"""`return_rounds`: each stream event describes the rounds of its tokens."""

import pytest

from tests.server.conftest import Connect
from tests.support.server.fakes import FakeEngine
from tests.support.server.responses import error_of, events_of

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def drafted(accepted: int, *, position: int = 0, tokens: int | None = None) -> dict[str, object]:
    tokens = accepted + 1 if tokens is None else tokens
    counts = {"drafted": 3, "accepted": accepted, "position": position, "tokens": tokens}
    return {"source": "draft", **counts}


TARGET = {"source": "target", "drafted": 0, "accepted": 0, "position": 0, "tokens": 1}


def test_an_incremental_event_has_the_round_of_its_tokens(connect: Connect) -> None:
    body = {"text": "x", "stream": True, "incremental_stream_output": True, "return_rounds": True}
    events = events_of(connect(FakeEngine("abcdef")).post("/generate", json=body).text)
    assert [event["meta_info"]["rounds"] for event in events] == [
        [drafted(2)],
        [drafted(2)],
        [TARGET],
    ]


def test_a_cumulative_event_has_all_rounds_so_far_apart(connect: Connect) -> None:
    body = {"text": "x", "stream": True, "return_rounds": True}
    events = events_of(connect(FakeEngine("abcdef")).post("/generate", json=body).text)
    assert events[-1]["meta_info"]["rounds"] == [drafted(2), drafted(2), TARGET]
    for event in events:
        tokens = sum(each["tokens"] for each in event["meta_info"]["rounds"])
        assert tokens == len(event["output_ids"])


def test_token_by_token_events_have_their_place_in_the_round(connect: Connect) -> None:
    body = {"text": "x", "stream": True, "incremental_stream_output": True, "return_rounds": True}
    client = connect(FakeEngine("abcd"))
    events = events_of(client.post("/generate", json={**body, "token_by_token": True}).text)
    assert [event["meta_info"]["rounds"] for event in events] == [
        [drafted(2, position=0, tokens=1)],
        [drafted(2, position=1, tokens=1)],
        [drafted(2, position=2, tokens=1)],
        [drafted(1, position=0, tokens=1)],
        [drafted(1, position=1, tokens=1)],
    ]


@pytest.mark.parametrize(
    ("route", "body"), [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", CHAT)]
)
def test_openai_chunks_have_every_round_also_without_text(
    connect: Connect, route: str, body: dict[str, object]
) -> None:
    engine = FakeEngine("👍👍", tokens_per_step=2)
    sent = {**body, "stream": True, "return_rounds": True}
    choices = [e["choices"][0] for e in events_of(connect(engine).post(route, json=sent).text)]
    rounds = [each for choice in choices for each in choice.get("rounds", [])]
    assert [each["tokens"] for each in rounds] == [2, 2, 2, 2, 1]
    assert [each["source"] for each in rounds] == ["draft"] * 4 + ["target"]


def test_rounds_are_absent_unless_requested(connect: Connect) -> None:
    client = connect()
    for route, body in (
        ("/generate", {"text": "x"}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", CHAT),
    ):
        assert '"rounds":[' not in client.post(route, json={**body, "stream": True}).text


@pytest.mark.parametrize(
    ("route", "body"), [("/generate", {"text": "x"}), ("/v1/completions", {"prompt": "x"})]
)
def test_rounds_without_a_stream_are_refused(
    connect: Connect, route: str, body: dict[str, object]
) -> None:
    error = error_of(connect().post(route, json={**body, "return_rounds": True}), 400)
    assert error["param"] == "return_rounds"
    assert "'stream': true" in error["message"]


def test_num_draft_tokens_reaches_the_engine(connect: Connect) -> None:
    engine = FakeEngine()
    client = connect(engine)
    client.post("/generate", json={"text": "x", "sampling_params": {"num_draft_tokens": 0}})
    client.post("/v1/completions", json={"prompt": "x", "num_draft_tokens": 2})
    client.post("/v1/chat/completions", json={**CHAT, "num_draft_tokens": 9})
    client.post("/generate", json={"text": "x"})
    assert [r.params.num_draft_tokens for r in engine.requests] == [0, 2, 9, None]


@pytest.mark.parametrize("value", [-1, 1.5, "two"])
def test_a_wrong_num_draft_tokens_is_refused(connect: Connect, value: object) -> None:
    body = {"text": "x", "sampling_params": {"num_draft_tokens": value}}
    error = error_of(connect().post("/generate", json=body), 400)
    assert error["param"] == "sampling_params.num_draft_tokens"
