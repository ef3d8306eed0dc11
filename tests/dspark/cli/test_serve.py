"""The process of `dspark serve` ends with its engine, if the settings have it so."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.server.fakes import wait_until
from tests.support.server.tiny_pair import TinyPair

# A server whose engine cannot run a step.
SERVER = """
import sys
from dspark.cli.main import main
from engine.core.engine_core import EngineCore

def broken(self, *args):
    raise RuntimeError("the device is gone")

EngineCore._run = broken
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("exits", [True, False])
def test_an_engine_that_dies_ends_the_process_with_exit_code_1(exits: bool, tmp_path: Path) -> None:
    pair, port = TinyPair.write(tmp_path), free_port()
    command = [sys.executable, "-c", SERVER, "serve", *pair.flags, "--server.port", str(port)]
    command += [] if exits else ["--server.exit_on_engine_death", "false"]
    url, log = f"http://127.0.0.1:{port}", tmp_path / "log"

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/ready").status_code == 200
        except httpx.TransportError:
            return False

    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until(is_ready, timeout_s=120)
        response = httpx.post(f"{url}/generate", json={"text": "abc"}, timeout=30)
        assert response.json()["error"]["code"] == "engine_dead"
        if exits:
            assert process.wait(timeout=30) == 1
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            assert httpx.get(f"{url}/health").status_code == 503
    finally:
        process.kill()
        process.wait()
    assert "the device is gone" in log.read_text()
