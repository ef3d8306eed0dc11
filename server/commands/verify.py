"""Prove that the engine says, token for token, what transformers' greedy generate says.

A difference where the reference's own two best logits lie closer than 1e-4 is a tie: either token
is right. The exit code is 1 on any other difference. The last line is JSON. Identity is promised in
float32; in lower precision the number of rows in a step moves the logits."""

import argparse

from engine import SamplingParams
from server.commands.measuring import (
    add_prompt_flags,
    check_concurrency,
    check_output,
    chosen_prompts,
    describe_prompts,
    encode,
    progress_bar,
    publish,
    quiet_libraries,
)
from server.commands.starting import (
    add_checking_flags,
    configure_log,
    load_text,
    resolved_engine_config,
    settle,
)
from server.flags import add_settings_flags

USAGE = "dspark verify --config FILE [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="verify")
    add_prompt_flags(parser)
    add_checking_flags(parser)
    add_settings_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = settle(args)
    if settings is None:
        return 0
    check_concurrency(args, settings)
    check_output(args.output)
    prompts = chosen_prompts(args)
    configure_log("warning")
    config = resolved_engine_config(settings)
    encoded = encode(load_text(settings, config), prompts)
    quiet_libraries()

    from engine.benchmarks.running import run_verification  # heavy: loads torch
    from engine.benchmarks.trial import Workload

    with progress_bar(len(encoded) + 1) as report:
        measurement = run_verification(
            config,
            workload=Workload(
                encoded, SamplingParams(max_new_tokens=args.max_tokens), args.concurrency
            ),
            report=report,
        )
    title = (
        f"greedy identity with transformers: {describe_prompts(prompts)}, at most "
        f"{args.max_tokens} output tokens each, {args.concurrency} at a time"
    )
    return publish(measurement, title=title, notes=(), args=args, settings=settings)
