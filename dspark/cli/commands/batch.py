"""Answer a file of requests in OpenAI's batch format.

Each line of the input has a custom_id, a method, a url and a body; results come one a line, in the
order in which they finish, and refused requests in the file of errors. The same command continues
after an interrupt: it skips the requests that have a result."""

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from dspark.batch.batch_files import ResultFile, check_requests, read_requests
from dspark.batch.running import answer
from dspark.cli.number_flags import at_least_one
from dspark.cli.prepared_pair import add_pair_flags
from dspark.cli.startup import settle
from dspark.runtime.logs import configure_log
from dspark.runtime.models import resolved_engine_config, running_engine
from dspark.runtime.service import server_options
from dspark.runtime.text import load_text
from server.app import create_app
from server.http.auth import KeyRing
from server.settings.base import SettingsError, quoted
from server.settings.schema import Settings

USAGE = "dspark batch [MODEL] --input FILE --output FILE [--config FILE] [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSONL with custom_id, method, url and body: chats, completions or responses",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="results are appended here"
    )
    parser.add_argument(
        "--errors",
        type=Path,
        metavar="FILE",
        help="refused requests are appended here; default: the output's name with .errors",
    )
    parser.add_argument(
        "--concurrency",
        type=at_least_one,
        metavar="N",
        help="requests at a time; default: as many as run, and as many again that wait",
    )
    add_pair_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = settle(args)
    if settings is None:
        return 0
    error_file: Path = args.errors or args.output.with_suffix(f".errors{args.output.suffix}")
    wanted = check_requests(args.input)
    with ResultFile(args.output) as output, ResultFile(error_file) as errors:
        _check_belongs(output, args.output, wanted)
        _check_belongs(errors, error_file, wanted)
        done = output.done | errors.done
        if len(done) < len(wanted):
            _answer_rest(args, settings, output, errors, total=len(wanted), done=done)
    print(
        f"{len(wanted)} requests: {output.num_results} results in {args.output}, "
        f"{errors.num_results} errors in {error_file}"
    )
    return 0


def _check_belongs(results: ResultFile, file: Path, wanted: set[str]) -> None:
    """Refuse results of another input, which would be taken for this one's."""
    strange = next((name for name in results.done if name not in wanted), None)
    if strange is not None:
        raise SettingsError(
            f"{file}: found the result of custom_id {quoted(strange)}, which is not in the input; "
            "accepted: a new file, or the output of an earlier run of this input"
        )


def _answer_rest(
    args: argparse.Namespace,
    settings: Settings,
    output: ResultFile,
    errors: ResultFile,
    *,
    total: int,
    done: frozenset[str],
) -> None:
    configure_log("warning")
    config = resolved_engine_config(settings)
    text = load_text(settings, config)
    options = server_options(settings, config, keys=KeyRing())
    scheduler = settings.scheduler
    num_running = scheduler.max_running_requests
    concurrency = args.concurrency or num_running + min(num_running, scheduler.max_queued_requests)
    requests = (r for r in read_requests(args.input) if r.custom_id not in done)
    with (
        running_engine(config) as engine,
        tqdm(total=total, initial=len(done), unit="request", file=sys.stderr, disable=None) as bar,
    ):
        app = create_app(engine=engine, text=text, options=replace(options, log_requests=False))
        asyncio.run(
            answer(
                app,
                engine,
                requests,
                output=output,
                errors=errors,
                concurrency=min(concurrency, total),
                advance=bar.update,
            )
        )
