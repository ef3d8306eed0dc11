"""Writes settings for people: effective settings as YAML, and the table of all settings."""

from itertools import takewhile
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from server.settings.base import Section
from server.settings.loading import Resolved
from server.settings.names import Catalog
from server.settings.schema import Settings


def default_text(field: FieldInfo) -> str:
    """A field's default as YAML writes it; "required" without one."""
    if field.is_required():
        return "required"
    return field.default if isinstance(field.default, str) else yaml_scalar(field.default)


def yaml_scalar(value: object) -> str:
    """Write a value as YAML in one line."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(yaml_scalar, value))}]"
    return yaml.safe_dump({"v": value}, width=1 << 16).removeprefix("v:").strip()


def value_at(settings: Section, path: str) -> Any:
    """The value of the setting with this dotted path."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def effective_yaml(resolved: Resolved[Any]) -> str:
    """Write the settings as a config file with the origin of each value that is not a default.

    Secrets are left out, so the file can be shown.
    """
    lines: list[str] = []
    sections: list[str] = []
    for path, setting in resolved.catalog.settings.items():
        *parents, name = path.split(".")
        same = takewhile(lambda pair: pair[0] == pair[1], zip(parents, sections, strict=False))
        num_open = len(list(same))
        lines += [f"{'  ' * depth}{parents[depth]}:" for depth in range(num_open, len(parents))]
        sections = parents
        value, origin = value_at(resolved.settings, path), resolved.origins.get(path)
        indent = "  " * len(parents)
        if setting.is_secret and value is not None:
            lines.append(f"{indent}# {name} is set by {origin} and not shown")
        else:
            comment = f"  # {origin}" if origin is not None else ""
            lines.append(f"{indent}{name}: {yaml_scalar(value)}{comment}")
    return "\n".join(lines) + "\n"


def public_values(settings: Settings) -> dict[str, object]:
    """The settings as nested plain values without secrets, for /server_info."""
    values = settings.model_dump(mode="json")
    for name in ("api_key", "admin_api_key"):
        values["server"][name] = None if getattr(settings.server, name) is None else "(set)"
    return values


def reference_table(catalog: Catalog[Any]) -> str:
    """Write the table of all settings in Markdown."""
    lines = ["| setting | accepted | default | meaning | also called |", "|---|---|---|---|---|"]
    for path, setting in catalog.settings.items():
        field = setting.field
        others = ", ".join(f"`{name}`" for name in catalog.other_names(path))
        cells = [f"`{path}`", setting.accepted, f"`{default_text(field)}`", field.description or ""]
        lines.append("| " + " | ".join([*cells, others]) + " |")
    return "\n".join(lines) + "\n"
