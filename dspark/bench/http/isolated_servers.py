"""Servers that have the machine to themselves: started, warmed up, asked, stopped, in turns."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dspark.bench.http.backends import Sampling
from dspark.bench.http.contenders import Contender, command_of
from dspark.bench.http.figures import ServedTrial
from dspark.bench.http.load import ClosedLoop
from dspark.bench.http.offline_engine import EngineTrial, run_engine
from dspark.bench.http.process import Process, is_healthy, wait_until_healthy
from dspark.bench.http.server import Server, ServerUnusable, client_of
from dspark.bench.http.turns import Plan, run_trial, warm_up
from dspark.bench.workloads.prompts import Prompt, spread

_SILENT_S = 600.0


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """How many requests are open at once, and how many there are altogether."""

    streams: int
    num_prompts: int


@dataclass(frozen=True, slots=True)
class Course:
    """What every server goes through in each of its turns."""

    prompts: tuple[Prompt, ...]
    prompt_file: Path  # where they are from
    loads: tuple[RequestLoad, ...]
    max_tokens: int
    trials: int

    def prompts_of(self, load: RequestLoad) -> tuple[Prompt, ...]:
        return spread(self.prompts, load.num_prompts)

    def plan(self, load: RequestLoad) -> Plan:
        return Plan(
            prompts=tuple(prompt.messages for prompt in self.prompts_of(load)),
            sampling=Sampling(self.max_tokens, ignore_eos=True),
            load=ClosedLoop(load.streams),
            trials=self.trials,
            vary_prompts=False,
        )

    def engine_flags(self, load: RequestLoad, result: Path) -> list[str]:
        """The same for `dspark bench`, once."""
        return [
            *("--prompts", str(self.prompt_file), "--num-prompts", str(load.num_prompts)),
            *("--concurrency", str(load.streams), "--max-tokens", str(self.max_tokens)),
            *("--trials", "1", "--output", str(result)),
        ]


class Stand:
    """One contender: its process while it has one, and all that was measured of it."""

    def __init__(
        self,
        name: str,
        contender: Contender,
        *,
        environment: Mapping[str, str],
        logs: Path,
        start_timeout_s: float,
    ) -> None:
        """Raises SettingsError for a command line that cannot be run."""
        self.name = name
        self.contender = contender
        self.served: dict[RequestLoad, list[ServedTrial]] = {}
        self.engine: dict[RequestLoad, list[EngineTrial]] = {}
        self.start_seconds: list[float] = []
        self.server_values: Mapping[str, object] = {}
        self._start = command_of(contender.start, environment, where=f"{name}.start")
        self._bench = command_of(contender.engine or "", environment, where=f"{name}.engine")
        self._log = logs / f"{name}.log"
        self._result = logs / f"{name}.json"
        self._start_timeout_s = start_timeout_s
        self._process: Process | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        """It alone runs; afterwards it is stopped, or frozen if it takes long to start.

        Raises ServerUnusable when it does not come to serve.
        """
        address = self.contender.address(self.name)
        async with client_of(address, timeout_s=_SILENT_S, headers={}) as client:
            started = time.perf_counter()
            process, is_new = self._process, self._process is None
            if process is None:
                if await is_healthy(client):
                    raise ServerUnusable(f"{self.name}: another server is at {address.url} already")
                process = await Process.start(self.name, self._start, log=self._log)
                self._process = process
            process.thaw()
            await wait_until_healthy(process, client, timeout_s=self._start_timeout_s)
            if is_new:
                self.start_seconds.append(time.perf_counter() - started)
            try:
                server = await Server.find(address, client)
                self.server_values = server.values()
                yield server
            finally:
                await self._step_aside()

    async def measure_engine(self, course: Course, load: RequestLoad) -> None:
        """The same load without HTTP. Raises ServerUnusable."""
        flags = course.engine_flags(load, self._result)
        trial = await run_engine(
            f"{self.name}, without HTTP",
            [*self._bench, *flags],
            log=self._log,
            result=self._result,
        )
        self.engine.setdefault(load, []).append(trial)

    @property
    def has_engine(self) -> bool:
        return bool(self._bench)

    async def leave(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    async def _step_aside(self) -> None:
        if self.contender.stays and self._process is not None:
            self._process.freeze()
        else:
            await self.leave()


async def take_turns_alone(
    stands: Sequence[Stand], course: Course, *, report: Callable[[str], None]
) -> None:
    """Every contender `course.trials` times: A B, B A, A B, ...; results are in the stands.

    However it ends, nothing that was started runs on. Raises ServerUnusable.
    """
    async with AsyncExitStack() as stack:
        for stand in stands:
            stack.push_async_callback(stand.leave)
        for trial in range(course.trials):
            for stand in stands if trial % 2 == 0 else reversed(stands):
                report(f"trial {trial + 1} of {course.trials}: {stand.name}")
                await _turn(stand, course)


async def _turn(stand: Stand, course: Course) -> None:
    async with stand.serving() as server:
        for load in course.loads:
            plan = course.plan(load)
            await warm_up(server, plan)
            trial = await run_trial(server, plan, plan.prompts)
            stand.served.setdefault(load, []).append(trial)
    if stand.has_engine:
        for load in course.loads:
            await stand.measure_engine(course, load)
