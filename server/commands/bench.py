"""Measure the configured engine, or compare two ways to run it, in this process and without HTTP.

--compare speculation holds speculation against plain decoding of the same target; --compare
stacked holds the stacked context write against the per-layer one, alone and end to end. Arms take
turns; numbers are medians over the trials, with minimum and maximum. The last line is JSON. The
exit code is 1 when arms that must say the same do not. See benchmarks/README.md."""

import argparse

from engine import EngineConfig, SamplingParams
from engine.benchmarks.prompts import Prompt
from server.commands.measuring import (
    add_prompt_flags,
    at_least_one,
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

USAGE = "dspark bench --config FILE [--compare speculation|stacked] [options]"

_ENOUGH_TRIALS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="bench")
    parser.add_argument(
        "--compare",
        choices=("speculation", "stacked"),
        metavar="WHAT",
        help="speculation: against plain decoding; stacked: against the per-layer context write",
    )
    parser.add_argument(
        "--trials",
        type=at_least_one,
        default=_ENOUGH_TRIALS,
        metavar="N",
        help=f"runs of each arm; default {_ENOUGH_TRIALS}",
    )
    add_prompt_flags(parser)
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="default 0, which is greedy; a comparison takes nothing else",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling; default 0")
    add_checking_flags(parser)
    add_settings_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = settle(args)
    if settings is None:
        return 0
    check_concurrency(args, settings)
    check_output(args.output)
    _check_temperature(args)
    prompts = chosen_prompts(args)
    configure_log("warning")
    config = resolved_engine_config(settings)
    _check_draft(args, config)
    encoded = encode(load_text(settings, config), prompts)
    quiet_libraries()

    from engine.benchmarks.running import benchmark_reports, run_benchmark  # heavy: loads torch
    from engine.benchmarks.trial import Workload

    params = SamplingParams(
        max_new_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
    )
    with progress_bar(benchmark_reports(args.compare, trials=args.trials)) as report:
        measurement = run_benchmark(
            config,
            compare=args.compare,
            workload=Workload(encoded, params, args.concurrency),
            trials=args.trials,
            report=report,
        )
    return publish(
        measurement,
        title=title(args, prompts),
        notes=notes(args),
        args=args,
        settings=settings,
    )


def title(args: argparse.Namespace, prompts: tuple[Prompt, ...]) -> str:
    """The line over the table: what was done, in words."""
    what = {
        None: "throughput",
        "speculation": "speculation against plain decoding",
        "stacked": "stacked against per-layer context write",
    }
    trials = "1 trial" if args.trials == 1 else f"{args.trials} trials"
    return (
        f"{what[args.compare]}: {describe_prompts(prompts)}, at most {args.max_tokens} output "
        f"tokens each, {args.concurrency} at a time, temperature {args.temperature:g}, "
        f"{trials}; median [minimum - maximum]"
    )


def notes(args: argparse.Namespace) -> list[str]:
    """What a reader of the table must know."""
    lines = ["stage times are the host's clock, and count the steps over prompts too"]
    if args.trials < _ENOUGH_TRIALS:
        lines.append(f"fewer than {_ENOUGH_TRIALS} trials: their range says little about noise")
    return lines


def _check_temperature(args: argparse.Namespace) -> None:
    if args.temperature < 0:
        raise SettingsError(f"--temperature: found {args.temperature:g}; accepted: 0 or more")
    if args.compare is not None and args.temperature != 0:
        raise SettingsError(
            f"--temperature: found {args.temperature:g}; accepted with --compare: 0, because "
            "sampled arms cannot be held against each other token by token"
        )


def _check_draft(args: argparse.Namespace, config: EngineConfig) -> None:
    if args.compare is not None and config.draft is None:
        raise SettingsError(
            f"--compare {args.compare}: speculative.algorithm is none; accepted: a config with a "
            "draft (speculative.draft_model)"
        )
