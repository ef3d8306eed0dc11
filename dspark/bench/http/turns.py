"""Servers take turns, so that each has the machine to itself and drift meets all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from dspark.bench.http.backends import Messages, Sampling
from dspark.bench.http.figures import ServedTrial
from dspark.bench.http.load import ClosedLoop, RequestLoad
from dspark.bench.http.server import Address, Server, client_of
from dspark.bench.http.streamed_request import Call

Report = Callable[[str], None]  # told what begins now

_WARM_UP_TOKENS = 16
_WARM_UP_REQUESTS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What every server is asked in every trial."""

    prompts: tuple[Messages, ...]
    sampling: Sampling
    load: RequestLoad
    trials: int
    vary_prompts: bool  # number the prompts anew in each trial, so that no cache knows them

    def prompts_of(self, trial: int) -> tuple[Messages, ...]:
        """The same for every server. Trial -1 is the warm-up."""
        if not self.vary_prompts:
            return self.prompts
        return tuple(
            _numbered(prompt, f"({trial + 2}.{i + 1}) ") for i, prompt in enumerate(self.prompts)
        )


@dataclass(frozen=True, slots=True)
class Turns:
    """All trials, by the server's name, and what the servers are."""

    trials: Mapping[str, Sequence[ServedTrial]]
    servers: Mapping[str, Mapping[str, object]]


def num_reports(*, num_servers: int, trials: int) -> int:
    """How often `take_turns` reports."""
    return num_servers * (1 + trials)


async def take_turns(
    addresses: Sequence[Address],
    plan: Plan,
    *,
    timeout_s: float,
    headers: Mapping[str, str],
    report: Report,
) -> Turns:
    """Every server `plan.trials` times: A B, B A, A B, ... after a warm-up of each.

    timeout_s is how long a server may be silent. Raises ServerUnusable before the first trial.
    """
    async with AsyncExitStack() as stack:
        servers = []
        for address in addresses:
            client = client_of(address, timeout_s=timeout_s, headers=headers)
            servers.append(await Server.find(address, await stack.enter_async_context(client)))
        for server in servers:
            report(f"warm-up: {server.name}")
            await warm_up(server, plan)
        done: dict[str, list[ServedTrial]] = {server.name: [] for server in servers}
        for trial in range(plan.trials):
            for server in servers if trial % 2 == 0 else reversed(servers):
                report(f"trial {trial + 1} of {plan.trials}: {server.name}")
                done[server.name].append(await run_trial(server, plan, plan.prompts_of(trial)))
        return Turns(done, {server.name: server.values() for server in servers})


async def run_trial(server: Server, plan: Plan, prompts: Sequence[Messages]) -> ServedTrial:
    """All prompts once, after the server was asked to forget."""
    has_forgotten = await server.forget()

    async def ask(prompt: int) -> Call:
        return await server.ask(prompts[prompt], plan.sampling, prompt=prompt)

    cpu = time.process_time()
    calls = await plan.load.run(ask, len(prompts))
    cpu = time.process_time() - cpu
    return ServedTrial.of(calls, has_forgotten=has_forgotten, client_cpu_s=cpu)


async def warm_up(server: Server, plan: Plan) -> None:
    """As many requests as run at once, at least two, and short; nobody looks at the answers."""
    width = plan.load.num_clients if isinstance(plan.load, ClosedLoop) else _WARM_UP_REQUESTS
    tokens = min(plan.sampling.max_tokens, _WARM_UP_TOKENS)
    prompts = plan.prompts_of(-1)[: max(_WARM_UP_REQUESTS, width)]
    load = ClosedLoop(max(_WARM_UP_REQUESTS, width))
    short = replace(plan, sampling=replace(plan.sampling, max_tokens=tokens), load=load)
    await run_trial(server, short, prompts)


def _numbered(messages: Messages, number: str) -> Messages:
    first, *rest = messages
    return ({**first, "content": number + first["content"]}, *rest)
