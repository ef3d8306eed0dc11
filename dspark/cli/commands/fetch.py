"""Fetch the demo model into the cache and print its folder. Does nothing if it is there already.

The cache is $DSPARK_CACHE, else $XDG_CACHE_HOME/dspark, else ~/.cache/dspark."""

import argparse
import os
import sys

from dspark.cli.progress import TerminalProgress
from dspark.demo.target import ensure_demo_target
from engine.platform.cache_dir import default_cache_dir
from server.settings.model_sources import DEMO_NAME, DEMO_TARGET
from server.settings.schema import SettingsError

USAGE = "dspark fetch [NAME]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default=DEMO_NAME, metavar="NAME", help=DEMO_NAME)


def run(args: argparse.Namespace) -> int:
    if args.name not in (DEMO_NAME, DEMO_TARGET):
        raise SettingsError(f"NAME: found {args.name}; accepted: {DEMO_NAME}")
    with TerminalProgress(stream=sys.stderr) as progress:
        folder = ensure_demo_target(cache_dir=default_cache_dir(os.environ), progress=progress)
    print(folder)
    return 0
