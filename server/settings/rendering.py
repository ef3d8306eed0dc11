"""Settings for people: what a field accepts, effective settings as YAML, the reference table."""

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from server.settings.base import Wording
from server.settings.names import ENV_PREFIX, FIELDS, FLAG_ALIASES, PATH_ALIASES, SWITCHES
from server.settings.schema import Settings

_PLAIN_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def accepted(field: FieldInfo) -> str:
    """What a field takes, in words: "auto or an integer, at least 1"."""
    return _describe(field.annotation, field.metadata)


def default_text(field: FieldInfo) -> str:
    """A field's default as one would write it in YAML; "required" without one."""
    if field.is_required():
        return "required"
    return field.default if isinstance(field.default, str) else yaml_scalar(field.default)


def yaml_scalar(value: object) -> str:
    """A value as YAML writes it, in one line."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(yaml_scalar, value))}]"
    return yaml.safe_dump({"v": value}, width=1 << 16).removeprefix("v:").strip()


def value_at(settings: Settings, path: str) -> Any:
    """The value of the setting with this dotted path."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def effective_yaml(settings: Settings, origins: Mapping[str, str]) -> str:
    """The settings as a config file; what is not a default says where it comes from.

    Secrets are left out, so the file can be shown.
    """
    lines: list[str] = []
    sections: list[str] = []
    for path in FIELDS:
        *parents, name = path.split(".")
        if parents != sections:
            shared = parents[: len(parents) - 1] == sections[: len(parents) - 1]
            new = parents[-1:] if shared and len(parents) > 1 else parents
            depth = len(parents) - len(new)
            lines += [f"{'  ' * (depth + i)}{section}:" for i, section in enumerate(new)]
            sections = parents
        value = value_at(settings, path)
        comment = f"  # {origins[path]}" if path in origins else ""
        indent = "  " * len(parents)
        if _is_secret(value):
            lines.append(f"{indent}# {name} is set by {origins[path]} and not shown")
        else:
            lines.append(f"{indent}{name}: {yaml_scalar(value)}{comment}")
    return "\n".join(lines) + "\n"


def public_values(settings: Settings) -> dict[str, object]:
    """The settings as nested plain values without secrets, for /server_info."""
    values = settings.model_dump(mode="json")
    for name in ("api_key", "admin_api_key"):
        values["server"][name] = None if getattr(settings.server, name) is None else "(set)"
    return values


def _is_secret(value: object) -> bool:
    return isinstance(value, tuple) and any(isinstance(item, SecretStr) for item in value)


def reference_table() -> str:
    """docs/settings.md, as a whole."""
    lines = [_PREFACE, "| setting | accepted | default | meaning | also called |"]
    lines.append("|---|---|---|---|---|")
    for path, field in FIELDS.items():
        cells = [f"`{path}`", accepted(field), f"`{default_text(field)}`", field.description or ""]
        cells.append(", ".join(f"`{name}`" for name in _other_names(path)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


_PREFACE = f"""# Settings

Generated from `server/settings/schema.py` by `make docs`; do not edit by hand.

A setting can be given in four ways; the first in this list that names it wins:

1. a flag: `--kv.page_size 32`, or `--set kv.page_size=32`, or a shorter name from the last column;
2. an environment variable: `{ENV_PREFIX}KV__PAGE_SIZE=32`;
3. the YAML file given with `--config`;
4. the default.

In YAML the part before the dot is a section. Dashes may stand for underscores. Unknown names are
refused with the nearest valid one.

A path that begins with `./` or `../` counts from the folder of the YAML file that names it, so a
copy of the file elsewhere means another place; in a flag or an environment variable, from the
working directory. Any other relative path (`models/draft`) counts from the working directory
wherever it is written, and is a hub id where one is accepted and there is no such folder.

`dspark serve --print-config` shows the effective settings and where each one comes from;
`--check` validates them and exits.
"""


def _other_names(path: str) -> list[str]:
    names = list(FLAG_ALIASES.get(path, ()))
    names += [switch.flag for switch in SWITCHES if switch.path == path]
    return names + [alias for alias, target in PATH_ALIASES.items() if target == path]


def _describe(annotation: Any, metadata: list[Any]) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _describe(inner, [*_flatten(more), *metadata])
    if origin is Literal:
        return ", ".join(str(value) for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(part, metadata) for part in get_args(annotation))
    if annotation is type(None):
        return "null"
    if origin is tuple:
        return f"a list, of {_describe(get_args(annotation)[0], [])} each"
    wordings = [item.text for item in metadata if isinstance(item, Wording)]
    return wordings[0] if wordings else _PLAIN_NAMES.get(annotation, "text") + _bounds(metadata)


def _flatten(metadata: list[Any]) -> list[Any]:
    """Constraints, also those that a Field carries inside it."""
    return [
        c for item in metadata for c in (item.metadata if isinstance(item, FieldInfo) else [item])
    ]


def _bounds(metadata: list[Any]) -> str:
    words = []
    for constraint in metadata:
        if isinstance(constraint, annotated_types.Ge):
            words.append(f"at least {constraint.ge}")
        elif isinstance(constraint, annotated_types.Gt):
            words.append(f"above {constraint.gt}")
        elif isinstance(constraint, annotated_types.Le):
            words.append(f"at most {constraint.le}")
        elif isinstance(constraint, annotated_types.Lt):
            words.append(f"below {constraint.lt}")
    return "".join(f", {word}" for word in words)
