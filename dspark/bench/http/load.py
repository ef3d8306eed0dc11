"""Schedules requests: a closed loop with N clients, or Poisson arrivals at a rate."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dspark.bench.http.streamed_request import RequestRecord

SendRequest = Callable[[int], Awaitable[RequestRecord]]  # by the prompt's place in the workload


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`num_clients` clients; each sends its next request when its last one has finished."""

    num_clients: int

    def describe(self) -> str:
        return "1 client" if self.num_clients == 1 else f"{self.num_clients} clients"

    async def run(self, send: SendRequest, count: int) -> list[RequestRecord]:
        waiting = iter(range(count))

        async def client() -> list[RequestRecord]:
            return [await send(prompt) for prompt in waiting]

        each = await asyncio.gather(*(client() for _ in range(min(self.num_clients, count))))
        return [record for records in each for record in records]


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Requests that arrive at `rate` per second, whether or not earlier ones have finished."""

    rate: float
    seed: int

    def describe(self) -> str:
        return f"Poisson arrivals at {self.rate:g}/s"

    async def run(self, send: SendRequest, count: int) -> list[RequestRecord]:
        started = time.perf_counter()

        async def arrive(prompt: int, at: float) -> RequestRecord:
            await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
            return await send(prompt)

        times = arrivals(count, rate=self.rate, seed=self.seed)
        return list(await asyncio.gather(*(arrive(i, at) for i, at in enumerate(times))))


RequestLoad = ClosedLoop | PoissonArrivals


def arrivals(count: int, *, rate: float, seed: int) -> Sequence[float]:
    """Return `count` arrival times in seconds, from 0, with exponential gaps drawn from a seed."""
    generator = random.Random(seed)
    at, times = 0.0, []
    for _ in range(count):
        times.append(at)
        at += generator.expovariate(rate)
    return times
