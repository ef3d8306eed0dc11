"""Measure the configured engine, or compare two ways to run it, in this process and without HTTP.

--compare speculation: with a draft against plain decoding of the same target. --compare stacked:
the stacked context write against the per-layer one, alone and end to end. --compare transformers:
this engine, plain and with its draft, against transformers' generate. --compare grammar: answers
under a JSON schema, and text under a grammar that allows everything, against free text. --profile:
the time of each part of a round, and the time of reading its bytes at the measured bandwidth.

Arms take turns; numbers are medians, with minimum and maximum. The last line is JSON. The exit code
is 1 when arms that must generate the same tokens do not. See benchmarks/README.md."""

import argparse
import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.bench.workloads.prompts import Prompt
from dspark.cli.measuring import (
    add_prompt_flags,
    check_picture,
    chosen_prompts,
    describe_prompts,
    progress_bar,
    publish,
)
from dspark.cli.number_flags import at_least_one
from dspark.cli.prepared_pair import (
    Prepared,
    add_pair_flags,
    add_temperature_flags,
    checked_settings,
    prepare,
)
from engine import EngineSamplingParams
from server.settings.schema import Settings, SettingsError

if TYPE_CHECKING:
    from dspark.bench.http.serving_overhead import ServingOverhead
    from dspark.bench.report.outcome import Outcome

USAGE = (
    "dspark bench [MODEL] [--config FILE] "
    "[--compare speculation|stacked|transformers|grammar [--html FILE] | --profile] [options]"
)

_ENOUGH_TRIALS = 3
_TURNS = 15
_TOKENS_PER_EVENT = 2  # of the stream that HTTP is timed with: about an accept length

PROFILE_NOTES = (
    "the limit is the time of reading the bytes that must be read at the measured bandwidth; "
    "activations are left out",
    "by difference: the whole pass less the pass without that part; timed alone: the same product "
    "on the same shape outside of its pass, so that parts need not add up",
    "verification, batch building, scheduling and the rest are the host's clock in real rounds",
)


@dataclasses.dataclass(frozen=True, slots=True)
class WithServingOverhead:
    """An engine's profile and the overhead of the server."""

    engine: "Outcome"
    server: "ServingOverhead"

    @property
    def holds(self) -> bool:
        return self.engine.holds

    def lines(self) -> list[str]:
        return [*self.engine.lines(), "", *self.server.lines()]

    def values(self) -> Mapping[str, object]:
        return {**self.engine.values(), **self.server.values()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="bench")
    parser.add_argument(
        "--compare",
        choices=("speculation", "stacked", "transformers", "grammar"),
        metavar="WHAT",
        help="speculation: against plain decoding; stacked: against the per-layer context write; "
        "transformers: against transformers' generate, one stream; grammar: a JSON schema "
        "against free text",
    )
    parser.add_argument(
        "--by-proposer",
        action="store_true",
        help="with --compare speculation: also measure the draft model alone and lookups alone",
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="with --compare: also write a page with the speeds of the arms, acceptance by "
        "position and the time of a step's stages",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="measure the parts of a round at several contexts, rows and prefill chunks",
    )
    parser.add_argument(
        "--turns",
        type=at_least_one,
        default=_TURNS,
        metavar="N",
        help=f"measurements of each part in --profile; default {_TURNS}",
    )
    parser.add_argument(
        "--trials",
        type=at_least_one,
        default=_ENOUGH_TRIALS,
        metavar="N",
        help=f"runs of each arm; default {_ENOUGH_TRIALS}",
    )
    add_prompt_flags(parser)
    add_temperature_flags(parser, "default 0, which is greedy, and the only one with --compare")
    add_pair_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = checked_settings(args)
    if settings is None:
        return 0
    _check_kind(args)
    _check_temperature(args)
    _check_draft(args, settings)
    prompts = chosen_prompts(args)
    ready = prepare(settings, prompts)
    if args.profile:
        return profile(args, settings, ready, prompts)

    from dspark.bench.compare.grammar_tasks import masks_for
    from dspark.bench.running import benchmark_reports, run_benchmark  # heavy: loads torch
    from dspark.bench.workloads.trial import Workload

    params = EngineSamplingParams(
        max_new_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
    )
    reports = benchmark_reports(
        args.compare,
        trials=args.trials,
        has_draft=ready.config.draft is not None,
        by_proposer=args.by_proposer,
    )
    with progress_bar(reports) as report:
        measurement = run_benchmark(
            ready.config,
            compare=args.compare,
            workload=Workload(ready.encoded, params, args.concurrency),
            trials=args.trials,
            report=report,
            masks_for=partial(masks_for, ready.text, timeout_s=settings.server.grammar_timeout_s),
            by_proposer=args.by_proposer,
        )
    return publish(
        measurement,
        title=title(args, prompts),
        notes=notes(args),
        args=args,
        settings=settings,
    )


def profile(
    args: argparse.Namespace, settings: Settings, ready: Prepared, prompts: tuple[Prompt, ...]
) -> int:
    """Measure the engine's parts and then the server's, and return the exit code."""
    from dspark.bench.http.serving_overhead import measure_serving_overhead
    from dspark.bench.profile.profiling import NUM_REPORTS  # heavy: loads torch
    from dspark.bench.running import run_profile
    from dspark.bench.workloads.trial import Workload

    params = EngineSamplingParams(
        max_new_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
    )
    with progress_bar(1 + NUM_REPORTS) as report:
        measurement = run_profile(
            ready.config,
            workload=Workload(ready.encoded, params, args.concurrency),
            turns=args.turns,
            report=report,
        )
        report("detokenising and HTTP")
        sample = prompts[0].messages[-1]["content"]
        overhead = measure_serving_overhead(ready.text, sample, tokens_per_event=_TOKENS_PER_EVENT)
    return publish(
        dataclasses.replace(
            measurement, outcome=WithServingOverhead(measurement.outcome, overhead)
        ),
        title=f"profile: {describe_prompts(prompts)}, {args.concurrency} at a time for the rounds, "
        f"{args.turns} turns of each part; median [minimum - maximum]",
        notes=PROFILE_NOTES,
        args=args,
        settings=settings,
    )


def title(args: argparse.Namespace, prompts: tuple[Prompt, ...]) -> str:
    """Write the title of the table."""
    what = {
        None: "throughput",
        "speculation": "speculation against plain decoding",
        "stacked": "stacked against per-layer context write",
        "transformers": "this engine against transformers' generate",
        "grammar": "answers under a grammar against free text",
    }
    trials = "1 trial" if args.trials == 1 else f"{args.trials} trials"
    return (
        f"{what[args.compare]}: {describe_prompts(prompts)}, at most {args.max_tokens} output "
        f"tokens each, {args.concurrency} at a time, temperature {args.temperature:g}, "
        f"{trials}; median [minimum - maximum]"
    )


def notes(args: argparse.Namespace) -> list[str]:
    """List the notes below the table."""
    lines = ["stage times are the host's clock, and count the steps over prompts too"]
    if args.trials < _ENOUGH_TRIALS:
        lines.append(f"fewer than {_ENOUGH_TRIALS} trials: their range is no measure of noise")
    return lines


def _check_kind(args: argparse.Namespace) -> None:
    if args.compare == "transformers" and args.concurrency != 1:
        raise SettingsError(
            f"--concurrency: found {args.concurrency}; accepted with --compare transformers: 1, "
            "because generate answers one prompt at a time"
        )
    if args.html is not None and args.compare is None:
        raise SettingsError("--html: accepted with --compare only")
    check_picture(args.html, flag="--html")
    if args.profile and args.compare is not None:
        raise SettingsError("--profile: found together with --compare; accepted: one of them")


def _check_temperature(args: argparse.Namespace) -> None:
    if args.compare is not None and args.temperature != 0:
        raise SettingsError(
            f"--temperature: found {args.temperature:g}; accepted with --compare: 0, because "
            "sampled arms cannot be compared token by token"
        )


def _check_draft(args: argparse.Namespace, settings: Settings) -> None:
    if args.by_proposer:
        _check_proposers(args, settings)
    accepted = {"speculation": ("dspark", "lookup"), "stacked": ("dspark",)}.get(args.compare)
    algorithm = settings.speculative.algorithm
    if accepted is not None and algorithm not in accepted:
        raise SettingsError(
            f"--compare {args.compare}: speculative.algorithm is {algorithm}; accepted: "
            f"{' or '.join(accepted)}, which needs a draft (speculative.draft_model) for dspark"
        )


def _check_proposers(args: argparse.Namespace, settings: Settings) -> None:
    speculative = settings.speculative
    if args.compare != "speculation":
        raise SettingsError("--by-proposer: accepted with --compare speculation only")
    if speculative.algorithm != "dspark" or speculative.lookup.mode == "off":
        raise SettingsError(
            f"--by-proposer: found speculative.algorithm {speculative.algorithm} with "
            f"speculative.lookup.mode {speculative.lookup.mode}; accepted: dspark with auto or on"
        )
