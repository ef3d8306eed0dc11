"""A real `dspark serve` in a process of its own, and a client for it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.paths import ROOT
from tests.support.ports import free_port


@contextmanager
def serving(
    *flags: str,
    log: Path,
    config: str = "configs/demo.yaml",
    program: Sequence[str] = (sys.executable, "-m", "dspark"),
    folder: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[str]:
    """Yield the base URL of a ready server, which must end after SIGTERM.

    It runs in `folder` with the variables in `environ`, except OpenMP's.
    """
    url_port = free_port()
    command = [*program, "serve", "--config", config]
    command += ["--server.port", str(url_port), *flags]
    environment = {k: v for k, v in environ.items() if not k.startswith("OMP_")}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, env=environment
        )
    url = f"http://127.0.0.1:{url_port}"
    try:
        _wait_until_ready(url, process, log)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, log.read_text()


def generate_all(
    url: str, prompts: Sequence[Sequence[int]], *, concurrency: int, **sampling: Any
) -> list[dict[str, Any]]:
    """POST /generate for every prompt of token ids, `concurrency` at a time."""

    async def run() -> list[dict[str, Any]]:
        gate = asyncio.Semaphore(concurrency)
        limits = httpx.Limits(max_connections=concurrency)
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

            async def one(prompt: Sequence[int]) -> dict[str, Any]:
                async with gate:
                    body = {"input_ids": list(prompt), "sampling_params": sampling}
                    answer = await client.post("/generate", json=body)
                    assert answer.status_code == 200, answer.text
                    result: dict[str, Any] = answer.json()
                    return result

            return await asyncio.gather(*(one(p) for p in prompts))

    return asyncio.run(run())


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"not ready after 180 s:\n{log.read_text()}")
