"""Runs servers one at a time: start, warm up, measure, stop, in interleaved turns."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dspark.bench.http.backends import Sampling
from dspark.bench.http.interleaved import Plan, run_trial, warm_up
from dspark.bench.http.load import ClosedLoop
from dspark.bench.http.offline_engine import EngineTrial, run_engine
from dspark.bench.http.process import Process, is_healthy, wait_until_healthy
from dspark.bench.http.request_metrics import ServedTrial
from dspark.bench.http.server import Server, ServerUnusable, open_client
from dspark.bench.http.server_specs import ServerSpec, command_of
from dspark.bench.workloads.interleaving import Report, alternated
from dspark.bench.workloads.prompts import Prompt, spread

_READ_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """Requests open at once, and prompts in total."""

    streams: int
    num_prompts: int

    def describe(self) -> str:
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        prompts = "1 prompt" if self.num_prompts == 1 else f"{self.num_prompts} prompts"
        return f"{streams}, {prompts}"


@dataclass(frozen=True, slots=True)
class IsolatedPlan:
    """The loads that every server gets in each of its turns."""

    prompts: tuple[Prompt, ...]
    prompt_file: Path  # source of the prompts
    loads: tuple[StreamLoad, ...]
    max_tokens: int
    trials: int

    def prompts_of(self, load: StreamLoad) -> tuple[Prompt, ...]:
        return spread(self.prompts, load.num_prompts)

    def requests_of(self, load: StreamLoad) -> Plan:
        return Plan(
            prompts=tuple(prompt.messages for prompt in self.prompts_of(load)),
            sampling=Sampling(self.max_tokens, ignore_eos=True),
            load=ClosedLoop(load.streams),
            trials=self.trials,
            vary_prompts=False,
        )

    def engine_flags(self, load: StreamLoad, result: Path) -> list[str]:
        """Return the flags with which `dspark bench` runs the same load once."""
        return [
            *("--prompts", str(self.prompt_file), "--num-prompts", str(load.num_prompts)),
            *("--concurrency", str(load.streams), "--max-tokens", str(self.max_tokens)),
            *("--trials", "1", "--output", str(result)),
        ]


class IsolatedServer:
    """One server of a comparison: its process, and the results of its turns."""

    def __init__(
        self,
        name: str,
        spec: ServerSpec,
        *,
        environment: Mapping[str, str],
        logs: Path,
        start_timeout_s: float,
    ) -> None:
        """Raises SettingsError for an invalid command line."""
        self.name = name
        self.spec = spec
        self.served: dict[StreamLoad, list[ServedTrial]] = {}
        self.engine: dict[StreamLoad, list[EngineTrial]] = {}
        self.start_seconds: list[float] = []
        self.server_values: Mapping[str, object] = {}
        self._start = command_of(spec.start, environment, where=f"{name}.start")
        self._bench = command_of(spec.engine or "", environment, where=f"{name}.engine")
        self._log = logs / f"{name}.log"
        self._result = logs / f"{name}.json"
        self._start_timeout_s = start_timeout_s
        self._process: Process | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        """Start or resume the server; afterwards stop it, or suspend it if it starts slowly.

        Raises ServerUnusable if it does not become healthy.
        """
        address = self.spec.address(self.name)
        async with open_client(address, timeout_s=_READ_TIMEOUT_S, headers={}) as client:
            started = time.perf_counter()
            process, is_new = self._process, self._process is None
            if process is None:
                if await is_healthy(client):
                    raise ServerUnusable(f"{self.name}: another server is at {address.url} already")
                process = await Process.start(self.name, self._start, log=self._log)
                self._process = process
            process.resume()
            await wait_until_healthy(process, client, timeout_s=self._start_timeout_s)
            if is_new:
                self.start_seconds.append(time.perf_counter() - started)
            try:
                server = await Server.find(address, client)
                self.server_values = server.values()
                yield server
            finally:
                if self.spec.stays:
                    process.suspend()
                else:
                    await self.stop()

    async def run_turn(self, plan: IsolatedPlan) -> None:
        """Measure every load over HTTP, then without it. Raises ServerUnusable."""
        async with self.serving() as server:
            for load in plan.loads:
                requests = plan.requests_of(load)
                await warm_up(server, requests)
                trial = await run_trial(server, requests, requests.prompts)
                self.served.setdefault(load, []).append(trial)
        for load in plan.loads if self._bench else ():
            engine_trial = await run_engine(
                f"{self.name}, without HTTP",
                [*self._bench, *plan.engine_flags(load, self._result)],
                log=self._log,
                result=self._result,
            )
            self.engine.setdefault(load, []).append(engine_trial)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()


async def run_isolated(
    servers: Sequence[IsolatedServer], plan: IsolatedPlan, *, report: Report
) -> None:
    """Run every server `plan.trials` times, in the order A B, B A, ...; the servers keep results.

    Stops every process at the end, also after an error. Raises ServerUnusable.
    """
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.stop)
        for trial in range(plan.trials):
            for server in alternated(servers, trial):
                report(f"trial {trial + 1} of {plan.trials}: {server.name}")
                await server.run_turn(plan)
