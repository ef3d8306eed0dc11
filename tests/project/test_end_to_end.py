"""A clean clone's first minutes: the demo config, served by `dspark serve` over HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from openai import OpenAI

from dspark.bench.compare.identity import generate_reference
from engine.loading.target import load_target
from server.text.tokenizer import TextCodec
from tests.support.live_server import generate_all, serving

pytestmark = pytest.mark.weights

QUESTIONS = (
    "Tom has 3 boxes of 12 pens and gives away 9 pens. How many are left?",
    "Write a Python function that reverses a string.",
    "Name three uses of a paper clip.",
)


@pytest.fixture(scope="module")
def url(demo_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(log=tmp_path_factory.mktemp("serve") / "log") as base:
        yield base


@pytest.fixture(scope="module")
def answers(demo_target: Path) -> list[tuple[list[int], tuple[int, ...], str]]:
    """Prompt ids, transformers' 32 greedy tokens, and their text."""
    codec = TextCodec.load(str(demo_target))
    target = load_target(
        str(demo_target),
        revision=None,
        dtype=torch.float32,
        device=torch.device("cpu"),
        trust_remote_code=False,
        max_model_len=2048,
    )
    prompts = [codec.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS]
    texts = [generate_reference(target, p, max_new_tokens=32) for p in prompts]
    return [(p, t, codec.decode(list(t))) for p, t in zip(prompts, texts, strict=True)]


def test_generate_returns_the_text_of_transformers(
    url: str, answers: list[tuple[list[int], tuple[int, ...], str]]
) -> None:
    found = generate_all(
        url, [p for p, _, _ in answers], concurrency=3, max_new_tokens=32, temperature=0
    )
    for answer, (_, ids, text) in zip(found, answers, strict=True):
        assert answer["output_ids"] == list(ids)
        assert answer["text"] == text
        assert answer["meta_info"]["spec_verify_ct"] > 0


def test_the_openai_client_streams_the_same_chat(
    url: str, answers: list[tuple[list[int], tuple[int, ...], str]]
) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    for question, (prompt, _, text) in zip(QUESTIONS, answers, strict=True):
        chunks = list(
            client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question}],
                max_tokens=32,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.prompt_tokens == len(prompt)


def test_the_server_reports_acceptance(
    url: str, answers: list[tuple[list[int], tuple[int, ...], str]]
) -> None:
    prompts = [prompt for prompt, _, _ in answers]
    generate_all(url, prompts, concurrency=1, max_new_tokens=32, temperature=0)
    live = httpx.get(f"{url}/server_info").json()["live"]
    assert live["accept_length"] > 1.3
    metrics = httpx.get(f"{url}/metrics").text
    counts = [
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith("dspark:spec_decode_num_accepted_tokens_per_pos_total{")
    ]
    assert len(counts) == 7  # of the longest proposal, a lookup
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == live["num_accepted_tokens"]


def test_switching_the_context_writer_does_not_change_an_answer(
    url: str, answers: list[tuple[list[int], tuple[int, ...], str]]
) -> None:
    prompt, ids, _ = answers[0]
    for mode, path in (("off", "per_layer"), ("on", "stacked")):
        status = httpx.post(f"{url}/set_context_kv", json={"mode": mode})
        assert json.loads(status.text)["path"] == path
        httpx.post(f"{url}/flush_cache")
        (found,) = generate_all(url, [prompt], concurrency=1, max_new_tokens=32, temperature=0)
        assert found["output_ids"] == list(ids)
