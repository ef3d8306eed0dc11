"""Servers that run one at a time, in interleaved turns."""

import asyncio
import sys
from pathlib import Path

import pytest

from dspark.bench.http.isolated_servers import (
    IsolatedPlan,
    IsolatedServer,
    StreamLoad,
    run_isolated,
)
from dspark.bench.http.server import ServerUnusable
from dspark.bench.http.server_specs import ServerSpec
from dspark.bench.workloads.prompts import Prompt
from tests.support.ports import free_port

ONE, TWO = StreamLoad(streams=1, num_prompts=1), StreamLoad(streams=2, num_prompts=2)
PROMPTS = tuple(Prompt(kind, ({"role": "user", "content": kind},)) for kind in ("chat", "code"))


def plan(*, trials: int = 2, loads: tuple[StreamLoad, ...] = (ONE,)) -> IsolatedPlan:
    return IsolatedPlan(PROMPTS, Path("prompts.jsonl"), loads, max_tokens=20, trials=trials)


def server(folder: Path, name: str, port: int, **more: object) -> IsolatedServer:
    spec = ServerSpec(
        about=name,
        start=f"$PYTHON -m tests.support.bench.small_server {name} {port} $JOURNAL",
        url=f"http://127.0.0.1:{port}",
        **more,  # type: ignore[arg-type]
    )
    environment = {"PYTHON": sys.executable, "JOURNAL": str(folder / "journal")}
    return IsolatedServer(name, spec, environment=environment, logs=folder, start_timeout_s=30)


def journal(folder: Path) -> list[str]:
    return (folder / "journal").read_text().splitlines()


def visits(folder: Path) -> list[str]:
    return [line for line in journal(folder) if not line.startswith("request")]


def test_a_server_starts_for_its_turn_and_stops_before_the_next_one(tmp_path: Path) -> None:
    servers = [server(tmp_path, name, free_port()) for name in ("a", "b")]
    labels: list[str] = []
    asyncio.run(run_isolated(servers, plan(), report=labels.append))
    assert visits(tmp_path) == [
        *("started a", "stopped a", "started b", "stopped b"),
        *("started b", "stopped b", "started a", "stopped a"),
    ]
    assert labels == ["trial 1 of 2: a", "trial 1 of 2: b", "trial 2 of 2: b", "trial 2 of 2: a"]
    for each in servers:
        assert len(each.served[ONE]) == len(each.start_seconds) == 2
        assert [record.text for trial in each.served[ONE] for record in trial.records] == 2 * [
            "helloworld"
        ]


def test_a_slow_starter_starts_once(tmp_path: Path) -> None:
    servers = [
        server(tmp_path, "slow", free_port(), stays=True),
        server(tmp_path, "quick", free_port()),
    ]
    asyncio.run(run_isolated(servers, plan(), report=lambda label: None))
    assert visits(tmp_path) == [
        *("started slow", "started quick", "stopped quick"),
        *("started quick", "stopped quick", "stopped slow"),
    ]
    assert len(servers[0].served[ONE]) == 2
    assert len(servers[0].start_seconds) == 1


def test_every_load_has_a_warm_up_and_requests_all_its_tokens(tmp_path: Path) -> None:
    (one,) = servers = [server(tmp_path, "a", free_port())]
    asyncio.run(run_isolated(servers, plan(trials=1, loads=(ONE, TWO)), report=print))
    requests = [line for line in journal(tmp_path) if line.startswith("request")]
    short, whole = (f"request max_tokens={count} ignore_eos=True a" for count in (16, 20))
    assert requests == [short, whole, short, short, whole, whole]
    assert [len(one.served[load][0].records) for load in (ONE, TWO)] == [1, 2]


def test_the_engine_runs_the_same_loads_after_the_server_has_stopped(tmp_path: Path) -> None:
    bench = f"{sys.executable} -m tests.support.bench.small_bench 2.0 {tmp_path / 'journal'}"
    (one,) = servers = [server(tmp_path, "a", free_port(), engine=bench)]
    asyncio.run(run_isolated(servers, plan(trials=1, loads=(ONE, TWO)), report=print))
    assert visits(tmp_path) == ["started a", "stopped a", "engine 1 1 1", "engine 2 2 1"]
    (trial,) = one.engine[TWO]
    assert trial.seconds_per_token == pytest.approx(2.0 / 40)
    assert trial.pass_seconds_per_token == pytest.approx(1.0 / 40)


def test_an_engine_that_fails_is_quoted(tmp_path: Path) -> None:
    servers = [server(tmp_path, "a", free_port(), engine="sh -c 'echo no model; exit 2'")]
    with pytest.raises(ServerUnusable, match="a, without HTTP has ended with exit code 2: no mod"):
        asyncio.run(run_isolated(servers, plan(trials=1), report=print))


def test_an_error_stops_every_server(tmp_path: Path) -> None:
    slow = server(tmp_path, "slow", free_port(), stays=True)
    broken = ServerSpec(about="broken", start="false", url=f"http://127.0.0.1:{free_port()}")
    servers = [
        slow,
        IsolatedServer("broken", broken, environment={}, logs=tmp_path, start_timeout_s=30),
    ]
    with pytest.raises(ServerUnusable, match="broken has ended with exit code 1"):
        asyncio.run(run_isolated(servers, plan(), report=print))
    assert visits(tmp_path) == ["started slow", "stopped slow"]


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    port = free_port()
    servers = [server(tmp_path, "slow", port, stays=True), server(tmp_path, "other", port)]

    async def run() -> None:
        try:
            async with servers[0].serving():
                await run_isolated(servers[1:], plan(), report=print)
        finally:
            await servers[0].stop()

    with pytest.raises(ServerUnusable, match=f"other: another server is at .*:{port} already"):
        asyncio.run(run())
