"""Loads the settings of a command line and configures the log."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import SecretStr

from dspark.runtime.models import silence_libraries
from dspark.runtime.packaged import find_config
from dspark.runtime.text import text_of
from server.http.auth import KeyRing
from server.settings.flags import settings_flags
from server.settings.loading import load
from server.settings.model_sources import DEMO_NAME
from server.settings.names import Catalog, S
from server.settings.rendering import effective_yaml
from server.settings.schema import SERVING, Settings, SettingsError
from server.settings.sources import Assignment, read_flag

_OURS = ("dspark", "server", "engine", "draft", "kv_pool")


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


def configure_log(level: str) -> None:
    """Log lines of this level to stderr; those of libraries from warnings on."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    silence_libraries()


def keys_of(settings: Settings) -> KeyRing:
    """Read the keys from their settings or files. Raises SettingsError for a file without one."""
    server = settings.server
    return KeyRing(
        callers=_keys("api_key", server.api_key, server.api_key_file),
        admins=_keys("admin_api_key", server.admin_api_key, server.admin_api_key_file),
    )


def _keys(name: str, given: Sequence[SecretStr] | None, file: str | None) -> tuple[str, ...]:
    if given is not None:
        return tuple(key.get_secret_value() for key in given)
    if file is None:
        return ()
    lines = [line.strip() for line in text_of(file, f"server.{name}_file").splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise SettingsError(f"server.{name}_file: found {file} empty; accepted: a key a line")
    return keys
