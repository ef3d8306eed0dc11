"""Fetch the demo model into the cache and print its folder. Does nothing if it is there already.

The cache is $DSPARK_CACHE, else $XDG_CACHE_HOME/dspark, else ~/.cache/dspark."""

import argparse
import os
import sys

from engine.demo_target import DEMO_TARGET, default_cache_dir, ensure_demo_target
from server.commands.progress import TerminalProgress
from server.model_sources import DEMO_NAME
from server.settings import SettingsError

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
