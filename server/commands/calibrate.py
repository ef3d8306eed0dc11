"""Fit a temperature, and a shift if it helps, for each position of a block, so that the draft's
confidences mean what they say, and write them beside the draft as calibration.json.

The engine runs the prompts and verifies every draft token (sequential temperature scaling). The
table shows expected calibration error (ECE), area under the curve (AUC) and Brier score before and
after, where each quarter of the prompts is read by a fit on the other three; what is written is
fitted on all. A reliability plot goes beside the file if matplotlib is there. A fit wants many
rounds and prompts of all kinds: ask for --num-prompts 60, not for a dozen. The last line is
JSON."""

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
from server.settings import SettingsError

USAGE = "dspark calibrate --config FILE [--prompts FILE] [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="calibrate")
    add_prompt_flags(parser)
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="of the text: calibrate at the one that is served; default 0, which is greedy",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling; default 0")
    parser.add_argument(
        "--replace", action="store_true", help="fit anew where the draft has temperatures already"
    )
    add_checking_flags(parser)
    add_settings_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = settle(args)
    if settings is None:
        return 0
    check_concurrency(args, settings)
    check_output(args.output)
    if args.temperature < 0:
        raise SettingsError(f"--temperature: found {args.temperature:g}; accepted: 0 or more")
    if settings.speculative.algorithm == "none":
        raise SettingsError("speculative.algorithm: found none; accepted: a draft to calibrate")
    prompts = chosen_prompts(args)
    configure_log("warning")
    config = resolved_engine_config(settings)
    encoded = encode(load_text(settings, config), prompts)
    quiet_libraries()

    from engine.benchmarks.running import run_calibration  # heavy: loads torch
    from engine.benchmarks.trial import Workload

    params = SamplingParams(
        max_new_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
    )
    source = args.prompts.name if args.prompts is not None else "built-in prompts"
    with progress_bar(2) as report:
        measurement = run_calibration(
            config,
            workload=Workload(encoded, params, args.concurrency),
            dataset=f"{source}, {len(prompts)} prompts, temperature {args.temperature:g}",
            replace=args.replace,
            report=report,
        )
    title = (
        f"calibration of confidences: {describe_prompts(prompts)}, at most {args.max_tokens} "
        f"output tokens each, temperature {args.temperature:g}"
    )
    return publish(measurement, title=title, notes=(), args=args, settings=settings)
