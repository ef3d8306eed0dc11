"""Servers that have the machine to themselves, in turns."""

import asyncio
import sys
from pathlib import Path

import pytest

from dspark.bench.http.contenders import Contender
from dspark.bench.http.isolated_servers import Course, RequestLoad, Stand, take_turns_alone
from dspark.bench.http.server import ServerUnusable
from dspark.bench.workloads.prompts import Prompt
from tests.support.ports import free_port

ONE, TWO = RequestLoad(streams=1, num_prompts=1), RequestLoad(streams=2, num_prompts=2)
PROMPTS = tuple(Prompt(kind, ({"role": "user", "content": kind},)) for kind in ("chat", "code"))


def course(*, trials: int = 2, loads: tuple[RequestLoad, ...] = (ONE,)) -> Course:
    return Course(PROMPTS, Path("prompts.jsonl"), loads, max_tokens=20, trials=trials)


def stand(folder: Path, name: str, port: int, **more: object) -> Stand:
    contender = Contender(
        about=name,
        start=f"$PYTHON -m tests.support.bench.small_server {name} {port} $JOURNAL",
        url=f"http://127.0.0.1:{port}",
        **more,  # type: ignore[arg-type]
    )
    environment = {"PYTHON": sys.executable, "JOURNAL": str(folder / "journal")}
    return Stand(name, contender, environment=environment, logs=folder, start_timeout_s=30)


def journal(folder: Path) -> list[str]:
    return (folder / "journal").read_text().splitlines()


def visits(folder: Path) -> list[str]:
    return [line for line in journal(folder) if not line.startswith("asked")]


def test_each_is_started_for_its_turn_and_stopped_before_the_next_one(tmp_path: Path) -> None:
    stands = [stand(tmp_path, name, free_port()) for name in ("a", "b")]
    told: list[str] = []
    asyncio.run(take_turns_alone(stands, course(), report=told.append))
    assert visits(tmp_path) == [
        *("started a", "stopped a", "started b", "stopped b"),
        *("started b", "stopped b", "started a", "stopped a"),
    ]
    assert told == ["trial 1 of 2: a", "trial 1 of 2: b", "trial 2 of 2: b", "trial 2 of 2: a"]
    for each in stands:
        assert len(each.served[ONE]) == len(each.start_seconds) == 2
        assert [call.text for trial in each.served[ONE] for call in trial.calls] == 2 * [
            "helloworld"
        ]


def test_who_takes_long_to_start_is_started_once(tmp_path: Path) -> None:
    stands = [
        stand(tmp_path, "slow", free_port(), stays=True),
        stand(tmp_path, "quick", free_port()),
    ]
    asyncio.run(take_turns_alone(stands, course(), report=lambda label: None))
    assert visits(tmp_path) == [
        *("started slow", "started quick", "stopped quick"),
        *("started quick", "stopped quick", "stopped slow"),
    ]
    assert len(stands[0].served[ONE]) == 2
    assert len(stands[0].start_seconds) == 1


def test_every_load_is_warmed_up_and_asked_for_all_its_tokens(tmp_path: Path) -> None:
    (one,) = stands = [stand(tmp_path, "a", free_port())]
    asyncio.run(take_turns_alone(stands, course(trials=1, loads=(ONE, TWO)), report=print))
    asked = [line for line in journal(tmp_path) if line.startswith("asked")]
    short, whole = (f"asked max_tokens={count} ignore_eos=True a" for count in (16, 20))
    assert asked == [short, whole, short, short, whole, whole]
    assert [len(one.served[load][0].calls) for load in (ONE, TWO)] == [1, 2]


def test_its_engine_gets_the_same_loads_after_the_server_is_gone(tmp_path: Path) -> None:
    bench = f"{sys.executable} -m tests.support.bench.small_bench 2.0 {tmp_path / 'journal'}"
    (one,) = stands = [stand(tmp_path, "a", free_port(), engine=bench)]
    asyncio.run(take_turns_alone(stands, course(trials=1, loads=(ONE, TWO)), report=print))
    assert visits(tmp_path) == ["started a", "stopped a", "engine 1 1 1", "engine 2 2 1"]
    (trial,) = one.engine[TWO]
    assert trial.seconds_per_token == pytest.approx(2.0 / 40)
    assert trial.pass_seconds_per_token == pytest.approx(1.0 / 40)


def test_an_engine_that_fails_is_quoted(tmp_path: Path) -> None:
    stands = [stand(tmp_path, "a", free_port(), engine="sh -c 'echo no model; exit 2'")]
    with pytest.raises(ServerUnusable, match="a, without HTTP has ended with exit code 2: no mod"):
        asyncio.run(take_turns_alone(stands, course(trials=1), report=print))


def test_when_one_does_not_serve_none_of_them_runs_on(tmp_path: Path) -> None:
    slow = stand(tmp_path, "slow", free_port(), stays=True)
    broken = Contender(about="broken", start="false", url=f"http://127.0.0.1:{free_port()}")
    stands = [slow, Stand("broken", broken, environment={}, logs=tmp_path, start_timeout_s=30)]
    with pytest.raises(ServerUnusable, match="broken has ended with exit code 1"):
        asyncio.run(take_turns_alone(stands, course(), report=print))
    assert visits(tmp_path) == ["started slow", "stopped slow"]


def test_another_server_at_the_same_place_is_not_measured_by_mistake(tmp_path: Path) -> None:
    port = free_port()
    stands = [stand(tmp_path, "slow", port, stays=True), stand(tmp_path, "other", port)]

    async def run() -> None:
        try:
            async with stands[0].serving():
                await take_turns_alone(stands[1:], course(), report=print)
        finally:
            await stands[0].leave()

    with pytest.raises(ServerUnusable, match=f"other: another server is at .*:{port} already"):
        asyncio.run(run())
