"""Loads the settings of a command line."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from dspark.runtime.packaged import find_config
from server.settings.flags import settings_flags
from server.settings.loading import load
from server.settings.model_sources import DEMO_NAME
from server.settings.names import Catalog, S
from server.settings.rendering import effective_yaml
from server.settings.schema import SERVING, Settings
from server.settings.sources import Assignment, read_flag


def add_checking_flags(parser: argparse.ArgumentParser) -> None:
    """Add --check and --print-config."""
    parser.add_argument("--check", action="store_true", help="validate the settings and exit")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the effective settings with the origin of each, and exit",
    )


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, which is short for --model.path MODEL."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="folder, GGUF file or hub id of the target"
    )


def settle(args: argparse.Namespace) -> Settings | None:
    """Load the server's settings, as `load_or_print` does; None after --check too."""
    model: str | None = getattr(args, "model", None)
    more = [read_flag("MODEL", "model.path", model)] if model else []
    settings = load_or_print(args, SERVING, more=more)
    if settings is None or not args.check:
        return settings
    print(f"the settings are valid{_not_looked_up(settings)}")
    return None


def load_or_print(
    args: argparse.Namespace, catalog: Catalog[S], *, more: Sequence[Assignment] = ()
) -> S | None:
    """Load the settings of a command line; with --print-config print them and return None.

    more: settings that other arguments of the command give. Raises SettingsError.
    """
    config: Path | None = args.config
    if config is not None and catalog.schema is Settings:
        config = find_config(config)
    flags = [*more, *settings_flags(args)]
    resolved = load(catalog, config, flags=flags, environ=os.environ)
    if args.print_config:
        print(effective_yaml(resolved), end="")
        return None
    return resolved.settings


def _not_looked_up(settings: Settings) -> str:
    """List the models of a hub, which a check does not look up."""
    named = {
        "model.path": settings.model.path,
        "speculative.draft_model": settings.speculative.draft_model,
    }
    left = [
        f"{name} {value}"
        for name, value in named.items()
        if value is not None and value != DEMO_NAME and not Path(value).exists()
    ]
    return f"; models are looked up at start: {', '.join(left)}" if left else ""
