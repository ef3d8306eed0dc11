"""Compare the engine's greedy output with that of transformers, token by token.

Where the two best logits of the reference differ by less than 1e-4, either token is right. The exit
code is 1 on any other difference. The last line is JSON. Identity is promised in float32; in lower
precision the number of rows in a step changes the logits."""

import argparse

from dspark.cli.measuring import (
    add_prompt_flags,
    chosen_prompts,
    describe_prompts,
    progress_bar,
    publish,
)
from dspark.cli.prepared_pair import add_pair_flags, checked_settings, prepare
from engine import EngineSamplingParams

USAGE = "dspark verify [MODEL] [--config FILE] [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="verify")
    add_prompt_flags(parser)
    add_pair_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = checked_settings(args)
    if settings is None:
        return 0
    prompts = chosen_prompts(args)
    ready = prepare(settings, prompts)

    from dspark.bench.running import run_verification  # heavy: loads torch
    from dspark.bench.workloads.trial import Workload

    params = EngineSamplingParams(max_new_tokens=args.max_tokens)
    with progress_bar(len(ready.encoded) + 1) as report:
        measurement = run_verification(
            ready.config,
            workload=Workload(ready.encoded, params, args.concurrency),
            report=report,
        )
    title = (
        f"greedy identity with transformers: {describe_prompts(prompts)}, at most "
        f"{args.max_tokens} output tokens each, {args.concurrency} at a time"
    )
    return publish(measurement, title=title, notes=(), args=args, settings=settings)
