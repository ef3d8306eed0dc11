"""The engine alone, without HTTP, in a process of its own: what serving is held against."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.bench.http.process import Process
from dspark.bench.http.server import ServerUnusable

# Of a step's stages, those in which the models work: the others are scheduling.
_PASSES = ("draft", "verify", "context")


@dataclass(frozen=True, slots=True)
class EngineTrial:
    """One run of `dspark bench`."""

    seconds: float  # from the first request in to the last event out
    num_output_tokens: int
    passes_percent: float  # of the seconds: what the models' own work took

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.num_output_tokens

    @property
    def pass_seconds_per_token(self) -> float:
        return self.seconds_per_token * self.passes_percent / 100


async def run_engine(name: str, command: Sequence[str], *, log: Path, result: Path) -> EngineTrial:
    """One run of a command that writes its JSON to `result`. Raises ServerUnusable."""
    process = await Process.start(name, command, log=log)
    try:
        code = await process.wait()
    finally:
        await process.stop()
    if code != 0:
        raise ServerUnusable(f"{name} has ended with exit code {code}: {process.last_words()}")
    return engine_trial(json.loads(result.read_text(encoding="utf-8")))


def engine_trial(found: Mapping[str, Any]) -> EngineTrial:
    """The one arm of the JSON of `dspark bench`."""
    (arm,) = found["arms"].values()
    return EngineTrial(
        seconds=arm["duration_s"]["median"],
        num_output_tokens=int(arm["output_tokens"]["median"]),
        passes_percent=sum(arm["stages"][stage]["percent"] for stage in _PASSES),
    )
