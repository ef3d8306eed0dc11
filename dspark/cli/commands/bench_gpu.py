"""Check the CUDA path against references and measure it, with random models and no downloads.

The checks come first: attention, context KV, graphs and greedy text. The tables that follow are
explained in benchmarks/README.md. On a GPU every section runs in a separate process, so that one
that fails or hangs leaves the others their results. The JSON file is complete after each result.
The exit code is 1 when a check fails or a section is missing. `--tiny --device cpu` is a dry run
of the same program on any machine."""

import argparse
from pathlib import Path

from dspark.bench.gpu.results import SECTION_NAMES
from dspark.cli.number_flags import at_least_zero

USAGE = "dspark bench gpu [--tiny] [--device cuda|cpu] [--only SECTION] [--json FILE] [options]"

_MINUTES = 7.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="where to run; default cuda"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models: a dry run")
    parser.add_argument(
        "--only",
        action="append",
        choices=SECTION_NAMES,
        metavar="SECTION",
        help=f"run this section; may be repeated: {', '.join(SECTION_NAMES)}",
    )
    parser.add_argument(
        "--minutes",
        type=at_least_zero,
        default=_MINUTES,
        metavar="M",
        help=f"sections that have not started by then are left out; default {_MINUTES}",
    )
    parser.add_argument(
        "--apart",
        action="store_true",
        default=None,
        help="run each section in a separate process; default on a GPU",
    )
    parser.add_argument(
        "--together",
        dest="apart",
        action="store_false",
        help="run all sections in this process; default on a CPU",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")


def run(args: argparse.Namespace) -> int:
    from dspark.bench.gpu.gpu_check import GPUCheckOptions, run_gpu_check  # heavy: loads torch

    options = GPUCheckOptions(
        device=args.device,
        tiny=args.tiny,
        only=tuple(args.only or ()),
        minutes=args.minutes,
        apart=args.apart,
        json=args.json,
    )
    return run_gpu_check(options)
