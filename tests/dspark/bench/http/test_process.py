"""Programs that a benchmark starts, suspends and stops."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from dspark.bench.http import process as module
from dspark.bench.http.process import Process, is_healthy, wait_until_healthy
from dspark.bench.http.server import ServerUnusable
from tests.support.bench.asyncs import in_a_loop
from tests.support.ports import free_port
from tests.support.server.fakes import wait_until


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=0.5, trust_env=False)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def first_line_of(log: Path) -> Callable[[], bool]:
    return lambda: log.exists() and log.read_text().endswith("\n")


@in_a_loop
async def test_a_suspended_server_is_unhealthy_until_it_resumes(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "tests.support.bench.small_server", "a", str(port)]
    server = await Process.start("a", [*command, str(tmp_path / "journal")], log=tmp_path / "log")
    try:
        async with client(port) as http:
            await wait_until_healthy(server, http, timeout_s=30)
            server.suspend()
            assert not await is_healthy(http)
            server.resume()
            assert await is_healthy(http)
            server.suspend()
    finally:
        await server.stop()  # while suspended
    assert (tmp_path / "journal").read_text() == "started a\nstopped a\n"


@in_a_loop
async def test_stopping_a_program_ends_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = await Process.start("a", ["sh", "-c", "sleep 60 & echo $!; wait"], log=log)
    await asyncio.to_thread(wait_until, first_line_of(log))
    worker = int(log.read_text())
    assert is_alive(worker)
    await program.stop()
    await asyncio.to_thread(wait_until, lambda: not is_alive(worker))


@in_a_loop
async def test_a_program_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.05)
    log = tmp_path / "log"
    stubborn = ["sh", "-c", "trap '' TERM; echo stubborn; while true; do sleep 0.1; done"]
    program = await Process.start("a", stubborn, log=log)
    await asyncio.to_thread(wait_until, first_line_of(log))
    await program.stop()
    assert program.exit_code == -9


@in_a_loop
async def test_the_output_of_a_server_that_ends_early_is_in_the_error(tmp_path: Path) -> None:
    failing = ["sh", "-c", "echo first; echo no such model >&2; exit 3"]
    program = await Process.start("a", failing, log=tmp_path / "log")
    async with client(free_port()) as http:
        with pytest.raises(ServerUnusable) as caught:
            await wait_until_healthy(program, http, timeout_s=30)
    assert str(caught.value) == (
        "a has ended with exit code 3 before it served: "
        f"first | no such model; see {tmp_path / 'log'}"
    )


@in_a_loop
async def test_a_server_that_is_not_healthy_in_time_is_an_error(tmp_path: Path) -> None:
    program = await Process.start("a", ["sleep", "60"], log=tmp_path / "log")
    try:
        async with client(free_port()) as http:
            with pytest.raises(ServerUnusable, match=r"a does not serve after 0.2 s: \(no output"):
                await wait_until_healthy(program, http, timeout_s=0.2)
    finally:
        await program.stop()


@in_a_loop
async def test_a_missing_program_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ServerUnusable, match="a: cannot start /no/such/program "):
        await Process.start("a", ["/no/such/program"], log=tmp_path / "log")
