"""Measure a draft's accept length per prompt set, greedy and at temperature 1.

accept_len is the mean number of tokens per round, with the target's bonus token. accept_rate@k is
the fraction of rounds in which the draft is accepted up to position k, from 0. Neither depends on
the speed of the machine. The last line is JSON."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from dspark.bench.workloads.prompts import NO_CATEGORY, Prompt
from dspark.cli.measuring import (
    add_amount_flags,
    describe_prompts,
    pick,
    progress_bar,
    prompts_in,
    publish,
)
from dspark.cli.number_flags import at_least_zero
from dspark.cli.prepared_pair import (
    add_pair_flags,
    add_seed_flag,
    checked_settings,
    prepare,
    require_draft,
)
from engine import EngineSamplingParams

USAGE = "dspark eval [MODEL] [--config FILE] [--prompts FILE ...] [options]"

_TEMPERATURES = (0.0, 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="eval")
    parser.add_argument(
        "--prompts",
        nargs="+",
        metavar="FILE",
        help="JSONL with prompt, turns or messages; a prompt set is a line's category, else the "
        "file's name; default: 60 packaged prompts",
    )
    add_amount_flags(parser)
    parser.add_argument(
        "--temperatures",
        nargs="+",
        type=at_least_zero,
        default=list(_TEMPERATURES),
        metavar="T",
        help="default 0 1; 0 is greedy",
    )
    add_seed_flag(parser)
    add_pair_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = checked_settings(args)
    if settings is None:
        return 0
    require_draft(settings, purpose="evaluate")
    prompts = pick(prompt_sets(args.prompts), args)
    ready = prepare(settings, prompts)

    from dspark.bench.running import run_evaluation  # heavy: loads torch
    from dspark.bench.workloads.trial import Workload

    params = EngineSamplingParams(max_new_tokens=args.max_tokens, seed=args.seed)
    with progress_bar(len(args.temperatures)) as report:
        measurement = run_evaluation(
            ready.config,
            workload=Workload(ready.encoded, params, args.concurrency),
            temperatures=args.temperatures,
            report=report,
        )
    title = (
        f"accept lengths: {describe_prompts(prompts)}, at most {args.max_tokens} output tokens "
        f"each, {args.concurrency} at a time"
    )
    return publish(measurement, title=title, notes=(), args=args, settings=settings)


def prompt_sets(files: Sequence[str] | None) -> tuple[Prompt, ...]:
    """Read the prompts of all files; the file's name is the category of those without one.

    Raises SettingsError.
    """
    if files is None:
        return prompts_in(None)
    return tuple(
        dataclasses.replace(prompt, category=Path(file).stem)
        if prompt.category == NO_CATEGORY
        else prompt
        for file in files
        for prompt in prompts_in(Path(file))
    )
