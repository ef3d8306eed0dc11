"""Fit a temperature, and a shift if it helps, for each position of a block, so that the draft's
confidences mean what they say, and write them beside the draft as calibration.json.

The engine runs the prompts and verifies every draft token (sequential temperature scaling). The
table shows expected calibration error (ECE), area under the curve (AUC) and Brier score before and
after, where each quarter of the prompts is read by a fit on the other three; what is written is
fitted on all. A reliability plot goes beside the file if matplotlib is there. A fit wants many
rounds and prompts of all kinds. The last line is JSON."""

import argparse

from dspark.cli.measuring import (
    add_prompt_flags,
    chosen_prompts,
    describe_prompts,
    progress_bar,
    publish,
)
from dspark.cli.prepared_pair import (
    add_pair_flags,
    add_temperature_flags,
    checked_settings,
    prepare,
    require_draft,
)
from engine import EngineSamplingParams

_USUAL_PROMPTS = 60  # a fit wants many rounds

USAGE = "dspark calibrate --config FILE [--prompts FILE] [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="calibrate")
    add_prompt_flags(parser, usual_prompts=_USUAL_PROMPTS)
    add_temperature_flags(
        parser, "of the text: calibrate at the one that is served; default 0, which is greedy"
    )
    parser.add_argument(
        "--replace", action="store_true", help="fit anew where the draft has temperatures already"
    )
    add_pair_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = checked_settings(args)
    if settings is None:
        return 0
    require_draft(settings, purpose="calibrate")
    prompts = chosen_prompts(args)
    ready = prepare(settings, prompts)

    from dspark.bench.running import run_calibration  # heavy: loads torch
    from dspark.bench.workloads.trial import Workload

    params = EngineSamplingParams(
        max_new_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
    )
    source = args.prompts.name if args.prompts is not None else "built-in prompts"
    with progress_bar(2) as report:
        measurement = run_calibration(
            ready.config,
            workload=Workload(ready.encoded, params, args.concurrency),
            dataset=f"{source}, {len(prompts)} prompts, temperature {args.temperature:g}",
            replace=args.replace,
            report=report,
        )
    title = (
        f"calibration of confidences: {describe_prompts(prompts)}, at most {args.max_tokens} "
        f"output tokens each, temperature {args.temperature:g}"
    )
    return publish(measurement, title=title, notes=(), args=args, settings=settings)
