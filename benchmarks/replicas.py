"""Measures a deployment: latency against a single server, and what its routing reuses.

python -m benchmarks.replicas latency SINGLE DEPLOYMENT    milliseconds, both in turns
python -m benchmarks.replicas conversations DEPLOYMENT     share of prompt tokens from the cache
"""

import argparse
import asyncio
import json
import statistics
import time
from itertools import pairwise
from typing import Any

import httpx

QUESTION = "Write a short story about a dog that finds a bone in the garden."
RULE = "Rule {n}: a customer who asks about item {n} is told its price, colour and weight. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    latency = commands.add_parser("latency")
    latency.add_argument("single")
    latency.add_argument("deployment")
    latency.add_argument("--trials", type=int, default=12)
    latency.set_defaults(run=measure_latency)
    conversations = commands.add_parser("conversations")
    conversations.add_argument("deployment")
    conversations.add_argument("--seed", default="0", help="another one shares no text")
    conversations.set_defaults(run=measure_conversations)
    options = parser.parse_args()
    print(json.dumps(options.run(options)))


def measure_latency(options: argparse.Namespace) -> dict[str, Any]:
    """Stream one greedy answer at a time from each server in turns; the first trial warms up."""
    servers = {"single": options.single, "deployment": options.deployment}
    firsts: dict[str, list[float]] = {name: [] for name in servers}
    gaps: dict[str, list[float]] = {name: [] for name in servers}
    texts: dict[str, set[str]] = {name: set() for name in servers}
    for trial in range(options.trials + 1):
        for name, url in servers.items():
            first, between, text = _stream(url)
            texts[name].add(text)
            if trial:
                firsts[name].append(first)
                gaps[name] += between
    result: dict[str, Any] = {"same_text": len(texts["single"] | texts["deployment"]) == 1}
    for name in servers:
        result[name] = {
            "first_ms": _summary(firsts[name]),
            "between_events_ms": _summary(gaps[name]),
            "events": len(gaps[name]),
        }
    return result


def _stream(url: str) -> tuple[float, list[float], str]:
    body = {
        "model": _model(url),
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 64,
        "temperature": 0,
        "stream": True,
    }
    times, parts = [], []
    began = time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                content = choices[0]["delta"].get("content") if choices else None
                if content:
                    times.append(time.perf_counter())
                    parts.append(content)
    between = [(b - a) * 1e3 for a, b in pairwise(times)]
    return (times[0] - began) * 1e3, between, "".join(parts)


def measure_conversations(options: argparse.Namespace) -> dict[str, Any]:
    """Hold 8 conversations of 4 turns at once, with one system prompt of about 600 tokens."""
    url = options.deployment
    usages, replicas = asyncio.run(_conversations(url, options.seed))
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "cached_share": round(cached / prompt, 4),
        "first_prompt_tokens": usages[0]["prompt_tokens"],
        "replicas_of_a_conversation": [len(names) for names in replicas],
    }


async def _conversations(url: str, seed: str) -> tuple[list[dict[str, Any]], list[set[str]]]:
    model = _model(url)
    rules = f"Shop {seed}. " + "".join(RULE.format(n=n) for n in range(26))
    usages: list[dict[str, Any]] = []
    replicas: list[set[str]] = [set() for _ in range(8)]

    async def talk(number: int, http: httpx.AsyncClient) -> None:
        messages = [{"role": "system", "content": rules}]
        for turn in range(4):
            question = f"Customer {number}: what about item {number + turn} " + "and its box " * 10
            messages.append({"role": "user", "content": question})
            body = {"model": model, "messages": messages, "max_tokens": 32, "temperature": 0}
            response = await http.post(f"{url}/v1/chat/completions", json=body)
            answer = response.raise_for_status().json()
            replicas[number].add(response.headers["x-dspark-replica"])
            usages.append(answer["usage"])
            messages.append(answer["choices"][0]["message"])

    async with httpx.AsyncClient(timeout=300) as http:
        await asyncio.gather(*(talk(number, http) for number in range(8)))
    return usages, replicas


def _model(url: str) -> str:
    name: str = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    return name


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "min": round(min(values), 2),
        "max": round(max(values), 2),
    }


if __name__ == "__main__":
    main()
