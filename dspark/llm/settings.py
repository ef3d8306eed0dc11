"""Resolves the settings of an `LLM`: keywords over environment over config over defaults."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dspark.llm.validation import python_errors
from dspark.runtime.packaged import find_config, packaged_configs
from server.settings.loading import load_settings
from server.settings.names import FLAG_ALIASES, normalised
from server.settings.schema import SERVING, Settings, SettingsError
from server.settings.sources import Assignment
from server.settings.yaml_nodes import Value

_ALIASES = {
    flag.removeprefix("--").replace("-", "_"): path
    for path, flags in FLAG_ALIASES.items()
    for flag in flags
} | {"draft": "speculative.draft_model"}
# Of the sections for a service, what text generation itself uses.
_USED = (
    *("server.sampling_defaults", "server.default_max_tokens", "server.max_tokens_cap"),
    *("server.grammar_timeout_s", "server.special_tokens_in_content"),
    "server.additional_properties",
)


def resolve_settings(config: str | Path | None, keywords: Mapping[str, Any]) -> Settings:
    """Merge a config (a path or a packaged name), the environment and keywords, and validate.

    Raises ValueError with a line for each setting at fault.
    """
    with python_errors():
        file = None if config is None else _file(config)
        given = list(_assignments(keywords, prefix=""))
        return load_settings(file, flags=given, environ=os.environ).settings


def _file(config: str | Path) -> Path:
    file = find_config(config)
    if file.is_file():
        return file
    raise SettingsError(
        f"config: found {config}; accepted: a YAML file, one of the packaged configs "
        f"{', '.join(packaged_configs())}, or none with LLM(model=..., draft=...)"
    )


def _assignments(keywords: Mapping[str, Any], *, prefix: str) -> Iterator[Assignment]:
    """Flatten keywords; a dict is a section, and a name may be a dotted path or a known flag's."""
    for name, value in keywords.items():
        if isinstance(value, Mapping):
            yield from _assignments(value, prefix=f"{prefix}{name}.")
            continue
        full = f"{prefix}{name}"
        path = SERVING.find(_ALIASES.get(normalised(full), full), origin="LLM").path
        if path.startswith(("server.", "observability.")) and path not in _USED:
            raise SettingsError(
                f"{full}: found a setting of the HTTP service; accepted here: model, speculative, "
                f"kv, scheduler, attention, device, {', '.join(_USED)}"
            )
        yield Assignment(path, _written(value, full), origin=full, folder=Path.cwd())


def _written(value: object, name: str) -> Value:
    """Write a value as a YAML file has it: settings are read from text."""
    match value:
        case None | str():
            return value
        case bool():
            return str(value).lower()
        case int() | float() | Path():
            return str(value)
        case list() | tuple():
            return [_written(item, name) for item in value]
        case _:
            raise SettingsError(
                f"{name}: found {type(value).__name__}; accepted: text, a number, true, false or a "
                "list"
            )
