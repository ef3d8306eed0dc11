"""Runs `dspark bench` in a separate process: the engine without HTTP, as a baseline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.bench.http.process import Process
from dspark.bench.http.server import ServerUnusable

# Stages of a step that run the models; the others are scheduling.
_PASSES = ("draft", "verify", "context")


@dataclass(frozen=True, slots=True)
class EngineTrial:
    """One run of `dspark bench`."""

    seconds: float  # from the first request in to the last event out
    num_output_tokens: int
    passes_percent: float  # share of the seconds spent in the models

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.num_output_tokens

    @property
    def pass_seconds_per_token(self) -> float:
        return self.seconds_per_token * self.passes_percent / 100


async def run_engine(name: str, command: Sequence[str], *, log: Path, result: Path) -> EngineTrial:
    """Run a command that writes its JSON to `result`. Raises ServerUnusable if it fails."""
    process = await Process.start(name, command, log=log)
    try:
        code = await process.wait()
    finally:
        await process.stop()
    if code != 0:
        raise ServerUnusable(f"{name} has ended with exit code {code}: {process.output_tail()}")
    return engine_trial(json.loads(result.read_text(encoding="utf-8")))


def engine_trial(found: Mapping[str, Any]) -> EngineTrial:
    """Read the only arm in the JSON of `dspark bench`."""
    (arm,) = found["arms"].values()
    return EngineTrial(
        seconds=arm["duration_s"]["median"],
        num_output_tokens=int(arm["output_tokens"]["median"]),
        passes_percent=sum(arm["stages"][stage]["percent"] for stage in _PASSES),
    )
