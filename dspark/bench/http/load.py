"""Many requests: when they begin. A closed loop keeps N open; an open one follows a rate."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dspark.bench.http.streamed_request import Call

Ask = Callable[[int], Awaitable[Call]]  # by the prompt's place in the workload


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`num_clients` clients; each asks its next question when its last one is answered."""

    num_clients: int

    def describe(self) -> str:
        return "1 client" if self.num_clients == 1 else f"{self.num_clients} clients"

    async def run(self, ask: Ask, count: int) -> list[Call]:
        waiting = iter(range(count))

        async def client() -> list[Call]:
            return [await ask(prompt) for prompt in waiting]

        each = await asyncio.gather(*(client() for _ in range(min(self.num_clients, count))))
        return [call for calls in each for call in calls]


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Requests that arrive at `rate` a second whether or not earlier ones are answered."""

    rate: float
    seed: int

    def describe(self) -> str:
        return f"Poisson arrivals at {self.rate:g}/s"

    async def run(self, ask: Ask, count: int) -> list[Call]:
        started = time.perf_counter()

        async def arrive(prompt: int, at: float) -> Call:
            await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
            return await ask(prompt)

        times = arrivals(count, rate=self.rate, seed=self.seed)
        return list(await asyncio.gather(*(arrive(i, at) for i, at in enumerate(times))))


RequestLoad = ClosedLoop | PoissonArrivals


def arrivals(count: int, *, rate: float, seed: int) -> Sequence[float]:
    """Seconds of `count` arrivals, the first at 0: exponential gaps, the same for one seed."""
    generator = random.Random(seed)
    at, times = 0.0, []
    for _ in range(count):
        times.append(at)
        at += generator.expovariate(rate)
    return times
