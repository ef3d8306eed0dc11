"""Measure running servers over HTTP as their clients see them: dspark, or any with OpenAI's routes.

Give --base-url several times to compare: the servers get the same prompts in turns, so that each
has the machine to itself. Token counts are those that the server reports (usage); without them
tokens/s and TPOT are omitted. Failed requests are counted and explained. The last line is JSON. The
exit code is 1 when a server completed no request. A key is taken from OPENAI_API_KEY."""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from dspark.bench.http.backends import BACKENDS, Sampling
from dspark.bench.http.interleaved import Plan, run_interleaved
from dspark.bench.http.load import ClosedLoop, PoissonArrivals, RequestLoad
from dspark.bench.http.report import ServedReport
from dspark.bench.http.server import Address
from dspark.bench.report.environment import Start, circumstances
from dspark.bench.workloads.interleaving import num_reports
from dspark.bench.workloads.prompts import Prompt
from dspark.cli.measuring import (
    add_prompt_flags,
    check_output,
    chosen_prompts,
    describe_prompts,
    own_arguments,
    print_result,
    progress_bar,
)
from dspark.cli.number_flags import above_zero, add_temperature_flag, an_integer, at_least_one
from server.settings.schema import SettingsError

USAGE = "dspark bench serve --base-url [NAME=]URL [--base-url ...] [options]"

_DEFAULT_BACKEND = "openai-chat"
_TIMEOUT_S = 600.0

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="bench-serve")
    parser.add_argument(
        "--base-url",
        action="append",
        required=True,
        metavar="[NAME=]URL",
        help="address of a server, as http://127.0.0.1:8000; a /v1 at its end is dropped",
    )
    parser.add_argument(
        "--backend",
        action="append",
        metavar="[NAME=]KIND",
        help="openai-chat (default), openai (completions, without a chat template) or native "
        "(/generate); for one server if it begins with its name",
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="[NAME=]MODEL",
        help="model in requests; default: the first in /v1/models",
    )
    parser.add_argument(
        "--extra-body",
        action="append",
        metavar="[NAME=]JSON",
        help="fields to add to the body of every request",
    )
    parser.add_argument(
        "--request-rate",
        type=above_zero,
        metavar="R",
        help="requests arrive R times a second at random (Poisson), instead of from --concurrency "
        "clients",
    )
    parser.add_argument(
        "--trials", type=at_least_one, default=3, metavar="N", help="runs of each server; default 3"
    )
    parser.add_argument(
        "--vary-prompts",
        action="store_true",
        help="vary the prompts between trials, for servers whose prefix cache cannot be flushed",
    )
    parser.add_argument(
        "--ignore-eos",
        action="store_true",
        help="generate --max-tokens tokens past the end of text",
    )
    add_prompt_flags(parser)
    add_temperature_flag(parser)
    parser.add_argument(
        "--seed",
        type=an_integer,
        default=0,
        metavar="N",
        help="seed of sampling and of arrivals; default 0",
    )
    parser.add_argument(
        "--timeout",
        type=above_zero,
        default=_TIMEOUT_S,
        metavar="S",
        help=f"longest silence of a server in seconds; default {_TIMEOUT_S:g}",
    )


def run(args: argparse.Namespace) -> int:
    servers = addresses(args)
    check_output(args.output)
    prompts = chosen_prompts(args)
    plan = Plan(
        prompts=tuple(prompt.messages for prompt in prompts),
        sampling=Sampling(args.max_tokens, args.temperature, args.seed, args.ignore_eos),
        load=_load(args),
        trials=args.trials,
        vary_prompts=args.vary_prompts,
    )
    start = Start.now()
    key = os.environ.get("OPENAI_API_KEY")
    with progress_bar(num_reports(num_arms=len(servers), trials=args.trials)) as report:
        served = asyncio.run(
            run_interleaved(
                servers,
                plan,
                timeout_s=args.timeout,
                headers={"authorization": f"Bearer {key}"} if key else {},
                report=report,
            )
        )
    outcome = ServedReport(served)
    return print_result(
        outcome,
        title=title(args, prompts, plan.load),
        notes=[*start.notes(), *outcome.notes()],
        args=args,
        values={**circumstances(start), "arguments": own_arguments(args)},
    )


def title(args: argparse.Namespace, prompts: Sequence[Prompt], load: RequestLoad) -> str:
    """Write the title of the table."""
    trials = "1 trial" if args.trials == 1 else f"{args.trials} trials"
    return (
        f"serving: {describe_prompts(prompts)}, at most {args.max_tokens} output tokens each, "
        f"{load.describe()}, temperature {args.temperature:g}, {trials}; median [minimum - maximum]"
    )


def addresses(args: argparse.Namespace) -> list[Address]:
    """Read the servers of a command line. Raises SettingsError."""
    named = [_named_url(value) for value in args.base_url]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise SettingsError(f"--base-url: found the names {', '.join(names)}; accepted: each once")
    backends = _by_server("--backend", args.backend, names, default=_DEFAULT_BACKEND)
    models = _by_server("--model", args.model, names, default=None)
    extras = _by_server("--extra-body", args.extra_body, names, default="{}")
    for kind in backends.values():
        if kind not in BACKENDS:
            raise SettingsError(f"--backend: found {kind}; accepted: {', '.join(BACKENDS)}")
    return [
        Address(name, url, BACKENDS[str(backends[name])], models[name], _fields(extras[name]))
        for name, url in named
    ]


def _named_url(value: str) -> tuple[str, str]:
    before, equals, after = value.partition("=")
    name, url = (before, after) if equals and "/" not in before else (None, value)
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"--base-url: found {value}; accepted: [NAME=]http://HOST:PORT")
    url = url.rstrip("/").removesuffix("/v1")
    return name or url.partition("://")[2], url


def _by_server(
    flag: str, values: Sequence[str] | None, names: Sequence[str], *, default: T
) -> dict[str, str | T]:
    """Assign NAME=VALUE to one server, and a VALUE without a server's name to all others."""
    found: dict[str, str | T] = dict.fromkeys(names, default)
    own: dict[str, str] = {}
    for value in values or ():
        before, equals, after = value.partition("=")
        if equals and before in names:
            own[before] = after
        elif equals and before.isidentifier() and flag == "--backend":
            raise SettingsError(f"{flag}: found {value}; accepted names: {', '.join(names)}")
        else:
            found = dict.fromkeys(names, value)
    return {**found, **own}


def _fields(text: str | None) -> Mapping[str, object]:
    try:
        found = json.loads(text or "")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SettingsError(f"--extra-body: found {text}; accepted: [NAME=] and a JSON object")
    return found


def _load(args: argparse.Namespace) -> RequestLoad:
    if args.request_rate is None:
        return ClosedLoop(args.concurrency)
    if args.concurrency != 1:
        raise SettingsError(
            "--request-rate: found together with --concurrency; accepted: one of them"
        )
    return PoissonArrivals(args.request_rate, args.seed)
