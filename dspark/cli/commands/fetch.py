"""Fetch the demo model into the cache unless it is there, and print its folder.

The cache is $DSPARK_CACHE, else $XDG_CACHE_HOME/dspark, else ~/.cache/dspark."""

import argparse

from dspark.runtime.models import demo_target
from server.settings.base import SettingsError, shown
from server.settings.model_sources import DEMO_NAME, DEMO_TARGET

USAGE = "dspark fetch [NAME]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default=DEMO_NAME, metavar="NAME", help=DEMO_NAME)


def run(args: argparse.Namespace) -> int:
    if args.name not in (DEMO_NAME, DEMO_TARGET):
        raise SettingsError(f"NAME: found {shown(args.name)}; accepted: {DEMO_NAME}")
    print(demo_target())
    return 0
