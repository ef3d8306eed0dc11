"""Reads settings from the arguments of an application, as Ray Serve's configs have them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dspark.runtime.packaged import find_config
from server.settings.base import SettingsError, quoted
from server.settings.loading import load_settings
from server.settings.names import normalised
from server.settings.schema import SERVING, Settings
from server.settings.sources import Assignment


def settings_of(args: Mapping[str, Any]) -> Settings:
    """Return checked settings: of `config`, the environment, and over both the other arguments.

    Raises SettingsError.
    """
    rest = dict(args)
    config = rest.pop("config", None)
    if config is not None and not isinstance(config, str):
        raise SettingsError(f"config: found {quoted(config)}; accepted: a file or a packaged name")
    file = find_config(config) if config is not None else None
    settings = load_settings(file, flags=list(_assignments(rest)), environ=os.environ).settings
    check(settings)
    return settings


def check_update(before: Settings, after: Settings) -> None:
    """Raise SettingsError for a change of what the proxy was started with."""
    for name in ("host", "port", "ssl_certfile", "ssl_keyfile"):
        found, kept = getattr(after.server, name), getattr(before.server, name)
        if found != kept:
            raise SettingsError(
                f"server.{name}: found {found}; accepted: {kept}, until the deployment is restarted"
            )


def check(settings: Settings) -> None:
    """Check that nothing is set that replicas do not use. Raises SettingsError."""
    for name in ("header_timeout_s", "body_timeout_s", "exit_on_engine_death"):
        if name in settings.server.model_fields_set:
            value = quoted(getattr(settings.server, name))
            raise SettingsError(
                f"server.{name}: found {value}, but Ray Serve reads the requests and replaces "
                "replicas; accepted: no value in a deployment"
            )


def _assignments(values: Mapping[str, Any], prefix: str = "") -> Iterator[Assignment]:
    """Flatten sections into assignments with dotted names."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        known = normalised(path)
        if isinstance(value, Mapping) and known not in SERVING.settings:
            yield from _assignments(value, f"{path}.")
        else:
            setting = SERVING.find(path, origin="argument")
            yield Assignment(setting.path, value, f"argument {path}", Path.cwd())
