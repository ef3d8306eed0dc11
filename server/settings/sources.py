"""Reads a file, the environment and flags into assignments: a setting, a value, an origin."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from server.settings.base import SettingsError, quoted, shown
from server.settings.names import Catalog, normalised
from server.settings.schema import SERVING
from server.settings.text_files import decoded
from server.settings.yaml_nodes import Value, compose, is_null, line_of, value_of

_LARGEST_FILE = 128 << 10  # bytes


@dataclass(frozen=True, slots=True)
class Assignment:
    """One setting as it was given."""

    path: str
    value: Value
    origin: str  # "configs/demo.yaml:12", "DSPARK__SERVER__PORT", "--port"
    folder: Path  # relative paths count from here
    line: int | None = None  # in the file; None elsewhere

    @property
    def where(self) -> str:
        """Origin and setting; a flag with the setting's own name gives both."""
        name = normalised(self.origin.removeprefix("--set ").removeprefix("--"))
        return self.origin if name == self.path else f"{self.origin}: {self.path}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake, as one line of text."""

    text: str
    line: int | None = None  # in the file; None elsewhere


def read_file(catalog: Catalog[Any], file: Path, faults: list[Fault]) -> list[Assignment]:
    """Read the settings in a YAML file; unknown names and repetitions are added to the faults.

    Raises SettingsError if there is no such file or it is not YAML.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise SettingsError(f"config file {shown(str(file))}: {error.strerror}") from None
    if len(content) > _LARGEST_FILE:
        raise SettingsError(f"config file {file}: accepted: at most {_LARGEST_FILE} bytes")
    root = compose(decoded(content, str(file)), str(file))
    return [] if root is None else once(_walk(catalog, root, "", file, faults), faults)


def read_environment(
    catalog: Catalog[Any], environ: Mapping[str, str], faults: list[Fault]
) -> list[Assignment]:
    """Read variables such as DSPARK__KV__PAGE_SIZE; faults as in `read_file`."""
    found = []
    for name, value in environ.items():
        if name.startswith(catalog.env_prefix):
            try:
                path = catalog.find_variable(name).path
            except SettingsError as error:
                faults.append(Fault(str(error)))
            else:
                found.append(Assignment(path, value, name, Path.cwd()))
    return once(found, faults)


def read_flag(flag: str, name: str, value: str, catalog: Catalog[Any] = SERVING) -> Assignment:
    """Read one flag, or one `--set name=value`. Raises SettingsError for an unknown name."""
    return Assignment(catalog.find(name, origin=flag).path, value, flag, Path.cwd())


def once(found: Iterable[Assignment], faults: list[Fault]) -> list[Assignment]:
    """Refuse a setting that one source gives twice, in whatever spellings."""
    first: dict[str, Assignment] = {}
    for item in found:
        before = first.setdefault(item.path, item)
        if before is not item:
            faults.append(_repeated(item.origin, item.path, before.origin, item.line))
    return list(first.values())


def _repeated(origin: str, name: str, before: str, line: int | None) -> Fault:
    return Fault(f"{origin}: {name} is given twice; first at {before}", line)


def _walk(
    catalog: Catalog[Any], node: yaml.Node, prefix: str, file: Path, faults: list[Fault]
) -> Iterator[Assignment]:
    """Flatten a mapping of sections into assignments."""
    if is_null(node):
        return
    if not isinstance(node, yaml.MappingNode):
        where, line = prefix.rstrip(".") or "the file", line_of(node)
        found = f"{where}: found {quoted(value_of(node))}; accepted: a mapping of settings"
        faults.append(Fault(f"{file}:{line}: {found}", line))
        return
    sections: dict[str, str] = {}
    for key, value in node.value:
        name, line = f"{prefix}{value_of(key)}", line_of(key)
        origin, path = f"{file}:{line}", normalised(name)
        if _is_section(catalog, path, value):
            if path in sections:
                faults.append(_repeated(origin, path, sections[path], line))
            elif sections.setdefault(path, origin):
                yield from _walk(catalog, value, f"{path}.", file, faults)
            continue
        try:
            setting = catalog.find(name, origin=origin)
        except SettingsError as error:
            faults.append(Fault(str(error), line))
        else:
            folder = file.resolve().parent
            yield Assignment(setting.path, value_of(value), origin, folder, line)


def _is_section(catalog: Catalog[Any], path: str, value: yaml.Node) -> bool:
    """Whether to look for settings in a value; an unknown mapping may hold misspelt ones."""
    if isinstance(value, yaml.MappingNode) and value.value:
        return path not in catalog.settings
    is_whole = is_null(value) or isinstance(value, yaml.MappingNode)
    return path in catalog.sections and (is_whole or path not in catalog.aliases)
