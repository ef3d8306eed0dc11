"""Compares this server with others, one at a time on the machine, and with its engine alone.

    PEERS=/where/they/are python -m benchmarks.peers.compare --output benchmarks/results

Every server of servers.yaml is started, warmed up, measured with one stream and with sixteen, and
stopped, three times; slow starters are suspended between their turns. If a server names its
engine, the same prompts also run through that without HTTP. README.md in this folder explains how
the others are installed.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dspark.bench.http.isolated_servers import (
    IsolatedPlan,
    IsolatedServer,
    StreamLoad,
    run_isolated,
)
from dspark.bench.http.server_comparison import ServerComparison
from dspark.bench.http.server_specs import ServerSpec, read_server_specs
from dspark.bench.report.environment import Start, circumstances
from dspark.cli.measuring import at_least_one, check_output, print_result, prompts_in
from engine import EngineError
from engine.platform.host import available_cores
from server.settings.schema import SettingsError

_HERE = Path(__file__).parent
_LOADS = (StreamLoad(streams=1, num_prompts=4), StreamLoad(streams=16, num_prompts=16))
_START_TIMEOUT_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; return 1 for an error, or if a server answered nothing."""
    args = _parser().parse_args(arguments)
    # SIGTERM stops the started servers first.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(args)
    except (SettingsError, EngineError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("compare: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(args: argparse.Namespace) -> int:
    check_output(args.output)
    specs = read_server_specs(args.servers, args.only)
    plan = _plan(args)
    start = Start.now()
    logs = args.logs or Path(tempfile.gettempdir()) / f"compare-{os.getpid()}"
    servers = _isolated_servers(specs, logs)
    logs.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    asyncio.run(run_isolated(servers, plan, report=_report_since(started)))
    took = time.perf_counter() - started
    if args.logs is None:  # kept after a failure, whose message names them
        shutil.rmtree(logs)
    comparison = ServerComparison(servers, plan)
    return print_result(
        comparison,
        title=_title(plan),
        notes=[*start.notes(), *comparison.notes()],
        args=args,
        values={
            **circumstances(start),
            "prompts": plan.prompt_file.name,
            "max_tokens": plan.max_tokens,
            "trials": plan.trials,
            "seconds": took,
        },
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command="bench-peers")
    add = parser.add_argument
    add(
        "--servers",
        type=Path,
        default=_HERE / "servers.yaml",
        metavar="FILE",
        help="how each is started; default: servers.yaml in this folder",
    )
    add("--only", nargs="+", default=[], metavar="NAME", help="some of them; default: all")
    add(
        "--load",
        action="append",
        type=_load,
        metavar="STREAMS:PROMPTS",
        help="requests open at once, and prompts; may be repeated; default 1:4 and 16:16",
    )
    add(
        "--prompts",
        type=Path,
        default=_HERE / "prompts.jsonl",
        metavar="FILE",
        help="JSONL; default: prompts.jsonl in this folder, about 150 tokens each",
    )
    add("--max-tokens", type=at_least_one, default=128, metavar="N", help="of each answer")
    add("--trials", type=at_least_one, default=3, metavar="N", help="turns of each; default 3")
    add("--logs", type=Path, metavar="FOLDER", help="keep what the servers print here")
    add("--output", type=Path, metavar="PATH", help="write the JSON to this file or folder")
    return parser


def _load(text: str) -> StreamLoad:
    streams, colon, prompts = text.partition(":")
    if not (colon and streams.isdecimal() and prompts.isdecimal()):
        raise argparse.ArgumentTypeError(f"found {text}; accepted: STREAMS:PROMPTS, as 16:16")
    return StreamLoad(at_least_one(streams), at_least_one(prompts))


def _plan(args: argparse.Namespace) -> IsolatedPlan:
    prompts = prompts_in(args.prompts)
    loads = tuple(args.load or _LOADS)
    most = max(load.num_prompts for load in loads)
    if most > len(prompts):
        raise SettingsError(f"--load: found {most} prompts; accepted: at most {len(prompts)}")
    return IsolatedPlan(prompts, args.prompts, loads, args.max_tokens, args.trials)


def _isolated_servers(specs: dict[str, ServerSpec], logs: Path) -> list[IsolatedServer]:
    environment = {
        "BIN": str(Path(sys.executable).parent),  # the programs of this project
        "THREADS": str(available_cores()),
        **os.environ,
    }
    return [
        IsolatedServer(
            name,
            spec,
            environment=environment,
            logs=logs,
            start_timeout_s=_START_TIMEOUT_S,
        )
        for name, spec in specs.items()
    ]


def _report_since(started: float) -> Callable[[str], None]:
    """Return a report that prints labels with the seconds since `started`."""

    def report(label: str) -> None:
        print(f"{time.perf_counter() - started:5.0f} s  {label}", file=sys.stderr, flush=True)

    return report


def _title(plan: IsolatedPlan) -> str:
    trials = "1 trial" if plan.trials == 1 else f"{plan.trials} trials"
    return (
        f"servers, one at a time on the machine: {plan.max_tokens} output tokens a request, "
        f"greedy, {trials}; median [minimum - maximum]"
    )


if __name__ == "__main__":
    sys.exit(main())
