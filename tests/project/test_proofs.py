"""The long proofs on the demo pair, through `dspark serve` itself (`make verify`)."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from dspark.bench.compare.identity import generate_reference, top2_gap
from engine.loading.target import LoadedTarget, load_target
from server.text.tokenizer import TextCodec
from tests.support.live_server import ROOT, generate_all, serving

logger = logging.getLogger("proofs")

pytestmark = [pytest.mark.weights, pytest.mark.slow]

NUM_PROMPTS = 40
NEW_TOKENS = 128
PROMPTS_FILE = ROOT / "dspark" / "bench" / "workloads" / "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Reference:
    """Greedy texts of transformers for each prompt."""

    target: LoadedTarget
    prompts: list[list[int]]
    texts: list[tuple[int, ...]]


@pytest.fixture(scope="module")
def reference(demo_target: Path) -> Reference:
    torch.set_num_threads(2)
    target = load_target(
        str(demo_target),
        revision=None,
        dtype=torch.float32,
        device=torch.device("cpu"),
        trust_remote_code=False,
        max_model_len=2048,
    )
    codec = TextCodec.load(str(demo_target))
    lines = [json.loads(line) for line in PROMPTS_FILE.read_text().splitlines()]
    spread = lines[:: max(1, len(lines) // NUM_PROMPTS)]
    chosen = (spread + [line for line in lines if line not in spread])[:NUM_PROMPTS]
    prompts = [codec.encode_chat([{"role": "user", "content": line["prompt"]}]) for line in chosen]
    texts = [generate_reference(target, p, max_new_tokens=NEW_TOKENS) for p in prompts]
    return Reference(target, prompts, texts)


# In a crowd the draft budget may leave next to nothing to prove.
ALWAYS = ("--speculative.draft_budget", "always")


@pytest.mark.parametrize(
    ("flags", "concurrency"),
    [
        ((), 1),
        ((), 3),
        ((), 16),
        (ALWAYS, 16),
        (("--speculative.algorithm", "none"), 16),
        ((*ALWAYS, "--speculative.stacked_context_kv", "off"), 16),
        ((*ALWAYS, "--kv.page_size", "1"), 16),
        ((*ALWAYS, "--kv.page_size", "64"), 16),
        ((*ALWAYS, "--scheduler.prefill_chunk_tokens", "7"), 16),
        ((*ALWAYS, "--kv.num_pages", "48"), 16),
        (("--kv.num_pages", "48", "--speculative.algorithm", "none"), 16),
        ((*ALWAYS, "--kv.prefix_cache", "false"), 4),
    ],
    ids=lambda value: " ".join(value) or "defaults" if isinstance(value, tuple) else str(value),
)
def test_greedy_text_through_the_server_equals_transformers(
    flags: tuple[str, ...], concurrency: int, reference: Reference, tmp_path: Path
) -> None:
    with serving(*flags, log=tmp_path / "log") as url:
        answers = generate_all(
            url,
            reference.prompts,
            concurrency=concurrency,
            max_new_tokens=NEW_TOKENS,
            temperature=0,
        )
        info = httpx.get(f"{url}/server_info").json()
    ties = _check(reference, [answer["output_ids"] for answer in answers])
    logger.info("ties: %s; accept length %s", ties or "none", info["live"]["accept_length"])
    if "always" in flags or concurrency == 1:
        assert info["live"]["accept_length"] > 1.3
    if "48" in flags:
        assert info["live"]["num_preemptions"] > 0


def _check(reference: Reference, found: Sequence[list[int]]) -> list[str]:
    """Every difference must be a tie of the reference's own logits; the ties, for the report."""
    ties = []
    triples = zip(reference.prompts, reference.texts, found, strict=True)
    for i, (prompt, expected, ids) in enumerate(triples):
        if list(expected) == ids:
            continue
        at = next(
            (n for n, (a, b) in enumerate(zip(expected, ids, strict=False)) if a != b),
            min(len(expected), len(ids)),
        )
        gap = top2_gap(reference.target, [*prompt, *expected[:at]])
        assert gap < 1e-4, f"prompt {i}, token {at}: {expected[at : at + 3]} but {ids[at : at + 3]}"
        ties.append(f"prompt {i} token {at} gap {gap:.1e}")
    return ties


def test_after_200_requests_with_aborts_and_disconnects_everything_is_back(
    reference: Reference, tmp_path: Path
) -> None:
    rng = random.Random(0)

    async def one(client: httpx.AsyncClient, number: int, gate: asyncio.Semaphore) -> str:
        body: dict[str, Any] = {
            "input_ids": reference.prompts[number % NUM_PROMPTS],
            "rid": f"r{number}",
            "sampling_params": {"max_new_tokens": rng.choice([1, 8, 40]), "temperature": 0.8},
        }
        kind = rng.choice(["whole", "stream", "abort", "disconnect", "give up"])
        async with gate:
            if kind == "whole":
                answer = await client.post("/generate", json=body)
                assert answer.status_code == 200
            elif kind == "give up":
                body["sampling_params"] |= {"max_new_tokens": 400, "ignore_eos": True}
                with pytest.raises(httpx.ReadTimeout):
                    await client.post("/generate", json=body, timeout=rng.uniform(0.05, 1.5))
            elif kind == "abort":
                body["sampling_params"] |= {"max_new_tokens": 400, "ignore_eos": True}
                task = asyncio.create_task(client.post("/generate", json=body))
                await asyncio.sleep(rng.uniform(0.1, 1.0))
                await client.post("/abort_request", json={"rid": f"r{number}"})
                reason = (await task).json()["meta_info"]["finish_reason"]["type"]
                assert reason == "abort"
            else:
                stop_after = rng.randint(1, 5) if kind == "disconnect" else None
                await _stream(client, body, stop_after)
        return kind

    async def all_of_them(url: str) -> list[str]:
        gate = asyncio.Semaphore(12)
        async with httpx.AsyncClient(base_url=url, timeout=600) as client:
            return await asyncio.gather(*(one(client, n, gate) for n in range(200)))

    with serving("--kv.num_pages", "160", log=tmp_path / "log") as url:
        kinds = asyncio.run(all_of_them(url))
        assert len(set(kinds)) == 5
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            live = httpx.get(f"{url}/server_info").json()["live"]
            if live["num_running"] == live["num_waiting"] == live["num_used_pages"] == 0:
                break
            time.sleep(0.1)
        assert (live["num_running"], live["num_waiting"], live["num_used_pages"]) == (0, 0, 0)
        # One that is given up before the engine heard of it has no end there.
        assert 200 - kinds.count("give up") <= sum(live["finished"].values()) <= 200
        again = generate_all(
            url, reference.prompts[:2], concurrency=1, max_new_tokens=NEW_TOKENS, temperature=0
        )
        for answer, expected in zip(again, reference.texts, strict=False):
            assert answer["output_ids"][:40] == list(expected[:40])


async def _stream(client: httpx.AsyncClient, body: dict[str, Any], stop_after: int | None) -> None:
    async with client.stream("POST", "/generate", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        frames = 0
        async for line in answer.aiter_lines():
            frames += line.startswith("data:")
            if stop_after is not None and frames >= stop_after:
                return
