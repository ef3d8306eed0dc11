"""Two replicas on Ray Serve, each with an engine and one thread: `make test-ray`."""

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.deployment import FATAL, Deployment, deploying, tiny_settings
from tests.support.live_server import serving
from tests.support.server.tiny_pair import TinyPair

pytestmark = pytest.mark.ray

LONG = {"max_tokens": 150, "temperature": 0, "model": "tiny"}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return TinyPair.write(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def deployed(pair: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deploying(tmp_path_factory.mktemp("deployment"), tiny_settings(pair)) as deployment:
        yield deployment


@pytest.fixture
def client(deployed: Deployment) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{deployed.url}/v1", api_key="x", max_retries=0) as connected:
        yield connected


@pytest.fixture
def http(deployed: Deployment) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=deployed.url, timeout=60) as connected:
        yield connected


def text_of(number: int, length: int = 100) -> str:
    return f"{number}: " + "the quick brown fox " * (length // 20)


def test_greedy_answers_are_those_of_a_single_server(
    deployed: Deployment, pair: TinyPair, tmp_path: Path
) -> None:
    def answers(url: str) -> list[Any]:
        bodies = [{**LONG, "prompt": text_of(n), "logprobs": 1} for n in range(6)]
        return [httpx.post(f"{url}/v1/completions", json=b, timeout=60).json() for b in bodies]

    settings = ["--model", str(pair.target), "--draft-model", str(pair.draft)]
    settings += ["--model.served_name", "tiny", "--device.num_threads", "1"]
    with serving(
        *settings, log=tmp_path / "log", config=str(deployed.config), environ=os.environ
    ) as url:
        alone = answers(url)
    together = answers(deployed.url)
    for one, other in zip(alone, together, strict=True):
        assert one["choices"][0]["text"] == other["choices"][0]["text"] != ""
        assert one["usage"]["completion_tokens"] == other["usage"]["completion_tokens"]


def test_the_official_client_streams_and_gets_structured_output(client: openai.OpenAI) -> None:
    message: Any = {"role": "user", "content": "say it"}
    parts = client.chat.completions.create(
        model="tiny", messages=[message], max_tokens=20, temperature=0, stream=True
    )
    streamed = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    whole = client.chat.completions.create(
        model="tiny", messages=[message], max_tokens=20, temperature=0
    )
    assert whole.choices[0].message.content == streamed != ""
    schema: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    structured = client.chat.completions.create(
        model="tiny", messages=[message], max_tokens=60, response_format=schema
    )
    assert json.loads(structured.choices[0].message.content or "")["a"] in ("x", "y")


def test_errors_are_those_of_the_server(http: httpx.Client) -> None:
    refused = http.post("/v1/completions", json={"model": "tiny", "prompt": "x", "nonsense": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "nonsense")
    unknown = http.get("/nothing")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_route")
    assert http.head("/health").status_code == 200
    large = http.post("/generate", content=b"x" * (9 << 20))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    assert len(refused.headers.get_list("x-request-id")) == 1


def test_conversations_stay_together_and_use_the_cache(http: httpx.Client) -> None:
    replicas: dict[int, set[str]] = {n: set() for n in range(4)}
    cached = 0
    talks = {n: [{"role": "user", "content": text_of(n, 80)}] for n in replicas}
    for _ in range(3):
        for number, messages in talks.items():
            body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0}
            response = http.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            answer = response.json()
            replicas[number].add(response.headers["x-dspark-replica"])
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            messages += [
                {"role": "assistant", "content": answer["choices"][0]["message"]["content"]},
                {"role": "user", "content": "go on"},
            ]
    assert [len(names) for names in replicas.values()] == [1, 1, 1, 1]
    assert cached > 4 * 2 * 80


def test_stored_responses_are_found_by_their_ids(client: openai.OpenAI, http: httpx.Client) -> None:
    first = client.responses.create(model="tiny", input="hi there", max_output_tokens=5)
    replica = first.id.split("_")[1].split("-")[0]
    for _ in range(4):
        assert client.responses.retrieve(first.id).id == first.id
        body = {"model": "tiny", "input": "more", "previous_response_id": first.id}
        following = http.post("/v1/responses", json={**body, "max_output_tokens": 4})
        assert following.status_code == 200, following.text
        assert following.headers["x-dspark-replica"] == replica
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_control_routes_reach_every_replica(deployed: Deployment, http: httpx.Client) -> None:
    for number in range(8):
        http.post("/generate", json={"text": text_of(number)})
    deployed.wait_until_idle()
    assert http.post("/flush_cache").json()["freed_pages"] > 0
    assert {r["live"]["num_cached_pages"] for r in deployed.info()["replicas"]} == {0}
    for mode, path in (("off", "per_layer"), ("auto", "stacked")):
        answer = http.post("/set_context_kv", json={"mode": mode}).json()
        assert {each["path"] for each in answer["replicas"].values()} == {path}
    names = set(deployed.processes())
    assert set(http.get("/health").json()["replicas"]) == names
    metrics = http.get("/metrics").text
    for name in names:
        assert f'dspark:engine_up{{replica="{name}"}} 1.0' in metrics
    assert metrics.count("# TYPE dspark:engine_up ") == 1


def test_an_abort_by_any_name_reaches_the_request(deployed: Deployment) -> None:
    async def run() -> None:
        async with httpx.AsyncClient(base_url=deployed.url, timeout=60) as http:
            for number in range(4):
                body = {"text": text_of(number), "sampling_params": {"max_new_tokens": 150}}
                name = f"mine-{number}"
                task = asyncio.create_task(
                    http.post("/generate", json={**body, "rid": name, "stream": False})
                )
                aborted = 0
                while not aborted and not task.done():
                    answer = await http.post("/abort_request", json={"rid": name})
                    aborted = answer.json()["aborted"]
                finish = (await task).json()["meta_info"]["finish_reason"]["type"]
                assert finish == ("abort" if aborted else "length")
                numbers.append(aborted)

    numbers: list[int] = []
    asyncio.run(run())
    assert sum(numbers) >= 1


def test_full_queues_are_status_429_with_a_time_to_wait(deployed: Deployment) -> None:
    async def run() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=deployed.url, timeout=120, limits=limits) as http:
            bodies = [{**LONG, "prompt": text_of(n)} for n in range(80)]
            calls = [http.post("/v1/completions", json=body) for body in bodies]
            return await asyncio.gather(*calls)

    responses = asyncio.run(run())
    statuses = Counter(response.status_code for response in responses)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= 40  # both engines run 4 and queue 16
    refused = next(r for r in responses if r.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "queue_full"
    deployed.wait_until_idle()


def test_disconnects_leave_nothing_behind(deployed: Deployment) -> None:
    async def one(http: httpx.AsyncClient, number: int) -> None:
        body = {**LONG, "prompt": text_of(number), "stream": number % 2 == 0}
        try:
            if number % 4 < 2:
                async with asyncio.timeout(0.05 + number % 7 / 50):
                    await http.post("/v1/completions", json=body)
            else:
                async with http.stream("POST", "/v1/completions", json=body) as response:
                    async for _ in response.aiter_lines():
                        break
        except (TimeoutError, httpx.HTTPError):
            pass

    async def run() -> None:
        limits = httpx.Limits(max_connections=10)
        async with httpx.AsyncClient(base_url=deployed.url, timeout=60, limits=limits) as http:
            gate = asyncio.Semaphore(8)

            async def gated(number: int) -> None:
                async with gate:
                    await one(http, number)

            await asyncio.gather(*map(gated, range(200)))

    before = deployed.processes()
    asyncio.run(run())
    deployed.wait_until_idle()
    assert deployed.processes() == before
    ended: Counter[str] = Counter(deployed.info()["live"]["finished"])
    assert ended["abort"] > 20


class Load:
    """Sixteen clients that stream completions until they are stopped."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outcomes: list[tuple[str, str]] = []  # (replica, "" or the error)
        self.streaming: Counter[str] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(16)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Send no more requests."""
        self._stop.set()

    def __exit__(self, *error: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        with httpx.Client(base_url=self.url, timeout=120) as http:
            while not self._stop.is_set():
                number += 16
                self.outcomes.append(self._one(http, {**LONG, "prompt": text_of(number)}))

    def _one(self, http: httpx.Client, body: dict[str, Any]) -> tuple[str, str]:
        with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            replica = response.headers.get("x-dspark-replica", "")
            if response.status_code != 200:
                return replica, f"{response.status_code} {response.read().decode()}"
            self.streaming[replica] += 1
            try:
                lines = [line for line in response.iter_lines() if line]
            finally:
                self.streaming[replica] -= 1
        if lines[-1] == "data: [DONE]":
            return replica, ""
        code: str = json.loads(lines[-1].removeprefix("data: "))["error"]["code"]
        return replica, code


def wait_for_streams(load: Load, replica: str) -> None:
    for _ in range(2000):
        if load.streaming[replica] >= 2:
            return
        threading.Event().wait(0.01)
    raise AssertionError(load.outcomes[-5:])


def test_a_killed_replica_takes_its_own_requests_alone_and_is_replaced(
    deployed: Deployment, client: openai.OpenAI, http: httpx.Client
) -> None:
    kept = client.responses.create(model="tiny", input="hi there", max_output_tokens=5)
    victim = kept.id.split("_")[1].split("-")[0]
    with Load(deployed.url) as load:
        wait_for_streams(load, victim)
        os.kill(deployed.processes()[victim], signal.SIGKILL)
        deployed.wait_for(2, without=victim, limit_s=60)
    failed = [outcome for outcome in load.outcomes if outcome[1]]
    assert {(replica, error) for replica, error in failed} <= {(victim, "replica_ended")}
    assert 1 <= len(failed) <= 16
    with pytest.raises(openai.NotFoundError, match="replica that has ended"):
        client.responses.retrieve(kept.id)
    gone = http.post("/abort_request", json={"rid": f"chatcmpl-{victim}-mine"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "request_not_found")
    deployed.wait_until_idle()


def test_a_replica_whose_engine_dies_is_replaced(
    deployed: Deployment, http: httpx.Client, tmp_path: Path
) -> None:
    before = set(deployed.processes())
    fatal = {**LONG, "prompt": f"{FATAL}{tmp_path / 'dead'}"}
    moved = http.post("/v1/completions", json={**fatal, "max_tokens": 4})
    assert moved.status_code == 200, moved.text
    (victim,) = before - {moved.headers["x-dspark-replica"]}
    for number in range(8):  # until Ray has noticed, the other replica answers
        body = {"model": "tiny", "prompt": text_of(number), "max_tokens": 4}
        assert http.post("/v1/completions", json=body).status_code == 200
    deployed.wait_for(2, without=victim, limit_s=60)


def test_an_update_and_a_smaller_number_of_replicas_refuse_no_request(
    deployed: Deployment,
) -> None:
    before = set(deployed.processes())
    with Load(deployed.url) as load:
        wait_for_streams(load, next(iter(before)))
        deployed.update(**{"server.max_tokens_cap": 151})
        for name in before:
            deployed.wait_for(2, without=name, limit_s=120)
        assert deployed.info()["config"]["server"]["max_tokens_cap"] == 151
        deployed.update(**{"deploy.replicas": 1})
        for name in set(deployed.processes()):
            deployed.wait_for(1, without=name, limit_s=120)
    assert [outcome for outcome in load.outcomes if outcome[1]] == []
    assert len(load.outcomes) > 32
    deployed.wait_until_idle()


def test_running_requests_finish_before_the_deployment_ends(deployed: Deployment) -> None:
    with Load(deployed.url) as load:
        wait_for_streams(load, next(iter(deployed.processes())))
        load.stop()
        deployed.process.send_signal(signal.SIGTERM)
    assert [outcome for outcome in load.outcomes if outcome[1]] == []
    assert deployed.process.wait(timeout=90) == 0
