"""Holds this server against others, each alone on the machine in its turn, and its own engine.

    PEERS=/where/they/are python -m benchmarks.peers.compare --output benchmarks/results

Every server of servers.yaml is started, warmed up, asked by one stream and by sixteen, and stopped
again, three times over; those that take long to start are frozen between their turns. Where a
server names its engine, the same prompts go through that too, without HTTP. README.md beside this
file says how the others are installed.
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

from dspark.bench.http.contenders import Contender, read_contenders
from dspark.bench.http.isolated_servers import Course, RequestLoad, Stand, take_turns_alone
from dspark.bench.http.standings import Standings
from dspark.bench.report.environment import Start, circumstances
from dspark.cli.measuring import at_least_one, check_output, print_result, prompts_in
from engine import EngineError
from engine.platform.host import available_cores
from server.settings.schema import SettingsError

_HERE = Path(__file__).parent
_LOADS = (RequestLoad(streams=1, num_prompts=4), RequestLoad(streams=16, num_prompts=16))
_START_TIMEOUT_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 when something cannot be done, or a server answered nothing."""
    args = _parser().parse_args(arguments)
    # A program that is told to end stops what it has started first.
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
    contenders = read_contenders(args.servers, args.only)
    course = _course(args)
    start = Start.now()
    logs = args.logs or Path(tempfile.gettempdir()) / f"compare-{os.getpid()}"
    stands = _stands(contenders, logs)
    logs.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    asyncio.run(take_turns_alone(stands, course, report=_report_since(begun)))
    took = time.perf_counter() - begun
    if args.logs is None:  # after a failure they stay, for it names them
        shutil.rmtree(logs)
    standings = Standings(stands, course)
    return print_result(
        standings,
        title=_title(course),
        notes=[*start.notes(), *standings.notes()],
        args=args,
        values={
            **circumstances(start),
            "prompts": course.prompt_file.name,
            "max_tokens": course.max_tokens,
            "trials": course.trials,
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
        help="how each is started; default: servers.yaml beside this program",
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
        help="JSONL; default: prompts.jsonl beside this program, of about 150 tokens each",
    )
    add("--max-tokens", type=at_least_one, default=128, metavar="N", help="of each answer")
    add("--trials", type=at_least_one, default=3, metavar="N", help="turns of each; default 3")
    add("--logs", type=Path, metavar="FOLDER", help="keep what the servers print here")
    add("--output", type=Path, metavar="PATH", help="write the JSON to this file or folder")
    return parser


def _load(text: str) -> RequestLoad:
    streams, colon, prompts = text.partition(":")
    if not (colon and streams.isdecimal() and prompts.isdecimal()):
        raise argparse.ArgumentTypeError(f"found {text}; accepted: STREAMS:PROMPTS, as 16:16")
    return RequestLoad(at_least_one(streams), at_least_one(prompts))


def _course(args: argparse.Namespace) -> Course:
    prompts = prompts_in(args.prompts)
    loads = tuple(args.load or _LOADS)
    most = max(load.num_prompts for load in loads)
    if most > len(prompts):
        raise SettingsError(f"--load: found {most} prompts; accepted: at most {len(prompts)}")
    return Course(prompts, args.prompts, loads, args.max_tokens, args.trials)


def _stands(contenders: dict[str, Contender], logs: Path) -> list[Stand]:
    environment = {
        "BIN": str(Path(sys.executable).parent),  # where this project's own programs are
        "THREADS": str(available_cores()),
        **os.environ,
    }
    return [
        Stand(
            name,
            contender,
            environment=environment,
            logs=logs,
            start_timeout_s=_START_TIMEOUT_S,
        )
        for name, contender in contenders.items()
    ]


def _report_since(begun: float) -> Callable[[str], None]:
    """A line for each turn that begins, with the seconds since then."""

    def report(label: str) -> None:
        print(f"{time.perf_counter() - begun:5.0f} s  {label}", file=sys.stderr, flush=True)

    return report


def _title(course: Course) -> str:
    trials = "1 trial" if course.trials == 1 else f"{course.trials} trials"
    return (
        f"servers, each alone on the machine: {course.max_tokens} output tokens a request, greedy, "
        f"{trials}; median [minimum - maximum]"
    )


if __name__ == "__main__":
    sys.exit(main())
