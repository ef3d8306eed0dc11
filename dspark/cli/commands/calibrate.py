"""Calibrate the draft's confidences and write calibration.json to the draft's folder.

Each position of a block gets a temperature, and a shift if that helps (sequential temperature
scaling). The engine runs the prompts and verifies every draft token. The table shows expected
calibration error (ECE), area under the curve (AUC) and Brier score before and after; each quarter
of the prompts is scored by a fit on the other three. The written fit uses all of them. With
matplotlib a reliability plot is written too. A fit needs at least 600 rounds, and a good one
prompts of all kinds: collecting stops at --rounds, or when too few can follow. The last line is
JSON."""

import argparse

from dspark.bench.draft_quality.round_counts import MIN_ROUNDS, USUAL_ROUNDS
from dspark.cli.measuring import (
    add_prompt_flags,
    chosen_prompts,
    describe_prompts,
    progress_bar,
    publish,
)
from dspark.cli.number_flags import an_integer
from dspark.cli.prepared_pair import (
    add_pair_flags,
    add_temperature_flags,
    checked_settings,
    prepare,
    require_draft,
)
from engine import EngineSamplingParams

_USUAL_PROMPTS = 60  # a fit needs many rounds

USAGE = "dspark calibrate --config FILE [--prompts FILE] [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="calibrate")
    add_prompt_flags(parser, usual_prompts=_USUAL_PROMPTS)
    add_temperature_flags(
        parser, "calibrate at the temperature of later requests; default 0, which is greedy"
    )
    parser.add_argument(
        "--replace", action="store_true", help="replace the calibration that the draft has"
    )
    parser.add_argument(
        "--rounds",
        type=_enough_rounds,
        default=USUAL_ROUNDS,
        metavar="N",
        help=f"stop collecting after this many rounds; at least {MIN_ROUNDS}, default "
        f"{USUAL_ROUNDS}",
    )
    add_pair_flags(parser)


def _enough_rounds(text: str) -> int:
    found = an_integer(text)
    if found < MIN_ROUNDS:
        raise argparse.ArgumentTypeError(f"found {text}; accepted: at least {MIN_ROUNDS}")
    return found


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
            num_rounds=args.rounds,
            report=report,
        )
    title = (
        f"calibration of confidences: {describe_prompts(prompts)}, at most {args.max_tokens} "
        f"output tokens each, temperature {args.temperature:g}"
    )
    return publish(measurement, title=title, notes=(), args=args, settings=settings)
