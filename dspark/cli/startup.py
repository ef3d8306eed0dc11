"""Resolves the settings of a command line, and configures the log."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import SecretStr

from dspark.runtime.packaged import find_config
from dspark.runtime.text import text_of
from server.http.auth import KeyRing
from server.settings.flags import settings_flags
from server.settings.loading import load_settings
from server.settings.model_sources import DEMO_NAME
from server.settings.rendering import effective_yaml
from server.settings.schema import Settings, SettingsError
from server.settings.sources import Assignment

_OURS = ("dspark", "server", "engine", "draft", "kv_pool")
# Libraries that warn about what is no concern of ours: parts of torchao for other hardware, and
# torch about the way in which torchao registers its types.
_CHATTERERS = ("torchao", "torch.utils._pytree")


def add_checking_flags(parser: argparse.ArgumentParser) -> None:
    """--check and --print-config."""
    parser.add_argument("--check", action="store_true", help="validate the settings and exit")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the effective settings, with where each comes from, and exit",
    )


def settle(args: argparse.Namespace, *, more: Sequence[Assignment] = ()) -> Settings | None:
    """The settings of a command line; None if it only asked to check or print them.

    `more` are settings that the command's own arguments stand for. Raises SettingsError.
    """
    flags = [*more, *settings_flags(args)]
    config = find_config(args.config) if args.config is not None else None
    resolved = load_settings(config, flags=flags, environ=os.environ)
    if args.print_config:
        print(effective_yaml(resolved.settings, resolved.origins), end="")
    elif args.check:
        print(f"the settings are valid{_not_looked_up(resolved.settings)}")
    return None if args.check or args.print_config else resolved.settings


def _not_looked_up(settings: Settings) -> str:
    """What a check has left to the start: whether models of a hub are there."""
    named = {
        "model.path": settings.model.path,
        "speculative.draft_model": settings.speculative.draft_model,
    }
    left = [
        f"{name} {value}"
        for name, value in named.items()
        if value is not None and value != DEMO_NAME and not Path(value).is_dir()
    ]
    return f"; not looked up, for that happens at the start: {', '.join(left)}" if left else ""


def configure_log(level: str) -> None:
    """Lines to stderr; libraries are heard only when something is wrong."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    for name in _CHATTERERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def keys_of(settings: Settings) -> KeyRing:
    """The keys from their settings or files. Raises SettingsError for a file without one."""
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
