"""Runs several servers interleaved, trial by trial."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from dspark.bench.http.backends import Messages, Sampling
from dspark.bench.http.load import ClosedLoop, RequestLoad
from dspark.bench.http.request_metrics import ServedTrial
from dspark.bench.http.server import Address, Server, open_client
from dspark.bench.http.streamed_request import RequestRecord
from dspark.bench.workloads.interleaving import (
    WARM_UP_TOKENS,
    Report,
    alternated,
    warm_up_width,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests that every server gets in every trial."""

    prompts: tuple[Messages, ...]
    sampling: Sampling
    load: RequestLoad
    trials: int
    vary_prompts: bool  # number the prompts anew in each trial, to miss any prefix cache

    def prompts_of(self, trial: int) -> tuple[Messages, ...]:
        """Return the prompts of a trial, the same for every server; trial -1 is the warm-up."""
        if not self.vary_prompts:
            return self.prompts
        return tuple(
            _numbered(prompt, f"({trial + 2}.{i + 1}) ") for i, prompt in enumerate(self.prompts)
        )


@dataclass(frozen=True, slots=True)
class ServedTrials:
    """All trials and the description of each server, by its name."""

    trials: Mapping[str, Sequence[ServedTrial]]
    servers: Mapping[str, Mapping[str, object]]


async def run_interleaved(
    addresses: Sequence[Address],
    plan: Plan,
    *,
    timeout_s: float,
    headers: Mapping[str, str],
    report: Report,
) -> ServedTrials:
    """Warm up every server, then run all trials in the order A B, B A, A B, ...

    timeout_s is the longest silence of a server. Raises ServerUnusable before the first trial.
    """
    async with AsyncExitStack() as stack:
        servers = []
        for address in addresses:
            client = open_client(address, timeout_s=timeout_s, headers=headers)
            servers.append(await Server.find(address, await stack.enter_async_context(client)))
        for server in servers:
            report(f"warm-up: {server.name}")
            await warm_up(server, plan)
        done: dict[str, list[ServedTrial]] = {server.name: [] for server in servers}
        for trial in range(plan.trials):
            for server in alternated(servers, trial):
                report(f"trial {trial + 1} of {plan.trials}: {server.name}")
                done[server.name].append(await run_trial(server, plan, plan.prompts_of(trial)))
        return ServedTrials(done, {server.name: server.values() for server in servers})


async def run_trial(server: Server, plan: Plan, prompts: Sequence[Messages]) -> ServedTrial:
    """Flush the prefix cache and send every prompt once."""
    cache_flushed = await server.flush_cache()

    async def send(prompt: int) -> RequestRecord:
        return await server.send(prompts[prompt], plan.sampling, prompt=prompt)

    cpu = time.process_time()
    records = await plan.load.run(send, len(prompts))
    cpu = time.process_time() - cpu
    return ServedTrial.of(records, cache_flushed=cache_flushed, client_cpu_s=cpu)


async def warm_up(server: Server, plan: Plan) -> None:
    """Send short requests, as many as run at once but at least two."""
    width = warm_up_width(plan.load.num_clients if isinstance(plan.load, ClosedLoop) else 1)
    tokens = min(plan.sampling.max_tokens, WARM_UP_TOKENS)
    sampling = replace(plan.sampling, max_tokens=tokens)
    short = replace(plan, sampling=sampling, load=ClosedLoop(width))
    await run_trial(server, short, plan.prompts_of(-1)[:width])


def _numbered(messages: Messages, number: str) -> Messages:
    first, *others = messages
    return ({**first, "content": number + first["content"]}, *others)
