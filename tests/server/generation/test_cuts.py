"""Stops at every position: text, ids, logprobs, finish reason and usage agree.

Runs a tiny engine with partly correct drafts, so that stops fall
at every position of a block.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.core.worker import EngineWorker
from server.app import create_app
from server.options import ServerOptions
from server.text.tokenizer import TextCodec
from tests.support.engine.running import generate_alone, oracle
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft
from tests.support.server.byte_text import ByteTokenizer
from tests.support.server.responses import events_of

PROMPT = [4, 173, 36, 143, 167]
LENGTH = 11
FIRST_LETTER = 0x4E00


class LetterTokenizer(ByteTokenizer):
    """One CJK letter for each token."""

    def __init__(self) -> None:
        self.all_special_ids = []
        self.added_tokens_decoder = {}

    def get_vocab(self) -> dict[str, int]:
        return {chr(FIRST_LETTER + i): i for i in range(VOCAB)}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [max(0, ord(letter) - FIRST_LETTER) for letter in text]

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str:
        return letters(token_ids)


def letters(token_ids: list[int]) -> str:
    return "".join(chr(FIRST_LETTER + token_id) for token_id in token_ids)


@pytest.fixture(scope="module")
def output_ids() -> list[int]:
    """The target's output without a stop; no token occurs twice."""
    ids = generate_alone(tiny_target(has_eos=False), PROMPT, LENGTH)
    assert len(set(ids)) == LENGTH
    return ids


@pytest.fixture(scope="module", params=[2, 4])
def client(
    request: pytest.FixtureRequest, output_ids: list[int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    folder = write_tiny_draft(tmp_path_factory.mktemp("draft"))
    built = tiny_engine(target=tiny_target(has_eos=False), draft_folder=folder)
    worker = EngineWorker(built.engine, num_threads=1)
    text = TextCodec(tokenizer=LetterTokenizer())
    app = create_app(engine=worker, text=text, options=ServerOptions(served_name="tiny"))
    try:
        with (
            oracle([[*PROMPT, *output_ids]], good=request.param, vocab=VOCAB),
            TestClient(app) as client,
        ):
            yield client
    finally:
        worker.close()


def _completions(client: TestClient, params: dict[str, Any]) -> list[Any]:
    """Return the completion whole, streamed, and streamed incrementally."""
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"temperature": 0, **params},
        "return_logprob": True,
    }
    whole = client.post("/generate", json=body).json()
    streamed = events_of(client.post("/generate", json={**body, "stream": True}).text)
    body = {**body, "stream": True, "incremental_stream_output": True}
    pieces = events_of(client.post("/generate", json=body).text)
    for piece in pieces:
        assert len(piece["output_ids"]) == len(piece["meta_info"]["output_token_logprobs"])
    logprobs = [entry for p in pieces for entry in p["meta_info"]["output_token_logprobs"]]
    merged = {
        "text": "".join(piece["text"] for piece in pieces),
        "output_ids": [token_id for piece in pieces for token_id in piece["output_ids"]],
        "meta_info": {**pieces[-1]["meta_info"], "output_token_logprobs": logprobs},
    }
    return [whole, streamed[-1], merged]


def _check(client: TestClient, params: dict[str, Any], ids: list[int], text: str, end: Any) -> None:
    for completion in _completions(client, params):
        meta = completion["meta_info"]
        assert completion["output_ids"] == ids
        assert completion["text"] == text
        assert meta["finish_reason"] == end
        assert meta["completion_tokens"] == len(ids)
        assert meta["prompt_tokens"] == len(PROMPT)
        assert [token_id for _, token_id, _ in meta["output_token_logprobs"]] == ids


@pytest.mark.parametrize("position", range(9))
@pytest.mark.parametrize(
    "kind", ["id", "string of one token", "string of three tokens", "regex of three tokens"]
)
def test_a_stop_at_any_position_of_a_block_cuts_text_ids_and_logprobs(
    position: int, kind: str, client: TestClient, output_ids: list[int]
) -> None:
    """max_new_tokens before, at and after the stop; at the same token the stop wins."""
    width = 3 if kind.endswith("of three tokens") else 1
    if position + 1 < width:
        position = width - 1
    stop: Any = letters(output_ids[position + 1 - width : position + 1])
    fields = {"stop": [stop]} if kind != "id" else {"stop_token_ids": [output_ids[position]]}
    matched = stop if kind != "id" else output_ids[position]
    if kind == "regex of three tokens":
        matched = f"{stop[0]}.{stop[2]}$"
        fields = {"stop_regex": matched}
    for limit in range(max(1, position), position + 3):
        ids = output_ids[: min(limit, position + 1)]
        if limit > position:
            end = {"type": "stop", "matched": matched}
            text = letters(output_ids[: position + 1 - width])
        else:
            end = {"type": "length", "length": limit}
            text = letters(ids)
        _check(client, {**fields, "max_new_tokens": limit}, ids, text, end)


@pytest.mark.parametrize("first", range(0, 7, 2))
@pytest.mark.parametrize("gap", [1, 3])
def test_the_first_complete_of_two_stops_cuts_in_any_listed_order(
    first: int, gap: int, client: TestClient, output_ids: list[int]
) -> None:
    second = first + gap
    for kinds in itertools.product(("id", "string"), repeat=2):
        stops = [(kind, output_ids[at]) for kind, at in zip(kinds, (first, second), strict=True)]
        for listed in (stops, stops[::-1]):
            params = {
                "stop": [letters([token]) for kind, token in listed if kind == "string"],
                "stop_token_ids": [token for kind, token in listed if kind == "id"],
                "max_new_tokens": LENGTH,
            }
            kind, token = stops[0]
            matched = token if kind == "id" else letters([token])
            end = {"type": "stop", "matched": matched}
            _check(client, params, output_ids[: first + 1], letters(output_ids[:first]), end)


@pytest.mark.parametrize("min_tokens", range(1, 9))
def test_stop_strings_complete_before_min_new_tokens_are_ignored(
    min_tokens: int, client: TestClient, output_ids: list[int]
) -> None:
    stops = [letters([output_ids[at]]) for at in (2, 5, 8)]
    cut = next(at for at in (2, 5, 8) if at + 1 >= min_tokens)
    params = {"stop": stops, "min_new_tokens": min_tokens, "max_new_tokens": LENGTH}
    end = {"type": "stop", "matched": letters([output_ids[cut]])}
    _check(client, params, output_ids[: cut + 1], letters(output_ids[:cut]), end)
