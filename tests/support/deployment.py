"""A real `dspark deploy` of tiny replicas in processes of its own, and what it says of itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.server.tiny_pair import TinyPair

PROGRAM = "from tests.support.dying_replica import main; main()"
FATAL = "the engine dies that makes the file "  # in a prompt, before a path
_START_S = 300.0  # two replicas, on a busy machine


@dataclass(slots=True)
class Deployment:
    """The address, the settings in a file, and the process."""

    url: str
    config: Path
    process: "subprocess.Popen[bytes]"
    log: Path

    def info(self) -> dict[str, Any]:
        info: dict[str, Any] = httpx.get(f"{self.url}/server_info", timeout=60).json()
        return info

    def processes(self) -> dict[str, int]:
        """Return the process id of each replica by its name."""
        return {each["replica"]: each["process_id"] for each in self.info()["replicas"]}

    def wait_for(self, num_replicas: int, *, without: str | None = None, limit_s: float) -> float:
        """Wait until so many replicas answer, none of them `without`; return the seconds."""
        began = time.monotonic()
        while time.monotonic() < began + limit_s:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                names = self.processes()
                if len(names) == num_replicas and without not in names:
                    return time.monotonic() - began
            except (httpx.HTTPError, KeyError, ValueError):
                pass
            time.sleep(0.2)
        raise AssertionError(self.log.read_text()[-4000:])

    def wait_until_idle(self) -> None:
        """Wait until no request runs or waits and no page is used; fail after 30 s."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            live = self.info()["live"]
            if live["num_running"] == live["num_waiting"] == live["num_used_pages"] == 0:
                return
            time.sleep(0.1)
        raise AssertionError(live)

    def update(self, **settings: Any) -> None:
        """Write settings by dotted name into the file and let the deployment read it again."""
        write_settings(self.config, settings)
        self.process.send_signal(signal.SIGHUP)


def write_settings(file: Path, settings: dict[str, Any]) -> None:
    """Add settings by dotted name to a YAML file."""
    tree = yaml.safe_load(file.read_text()) if file.exists() else {}
    for path, value in settings.items():
        *parents, name = path.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = value
    file.write_text(yaml.safe_dump(tree))


def tiny_settings(pair: TinyPair) -> dict[str, Any]:
    """Return settings of replicas that start fast and have one thread each."""
    return {
        "model.path": str(pair.target),
        "model.served_name": "tiny",
        "speculative.draft_model": str(pair.draft),
        "kv.num_pages": 600,
        "kv.page_size": 8,
        "scheduler.max_running_requests": 4,
        "scheduler.max_queued_requests": 16,
        "device.native_kernels": "off",
        "device.type": "cpu",
    }


@contextmanager
def deploying(folder: Path, settings: dict[str, Any]) -> Iterator[Deployment]:
    """Deploy two replicas; the process must end with code 0 after SIGTERM."""
    config, log = folder / "deploy.yaml", folder / "deploy.log"
    port = free_port()
    write_settings(config, {"server.port": port, **settings})
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "deploy", "--config", str(config)],
            cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    deployment = Deployment(f"http://127.0.0.1:{port}", config, process, log)
    try:
        deployment.wait_for(2, limit_s=_START_S)
        yield deployment
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) == 0, log.read_text()[-4000:]
