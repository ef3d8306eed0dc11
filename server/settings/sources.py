"""File, environment and flags as one kind of thing: a setting's name, a value, and who said so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from server.settings.names import (
    ENV_PREFIX,
    FIELDS,
    PATH_ALIASES,
    SECTIONS,
    canonical_path,
    did_you_mean,
)
from server.settings.rendering import accepted
from server.settings.schema import SettingsError
from server.settings.yaml_numbers import OddNumber, PlainLoader, refuse_odd


@dataclass(frozen=True, slots=True)
class Assignment:
    """One setting as somebody wrote it."""

    path: str  # canonical
    value: object
    origin: str  # "configs/demo.yaml:12", "DSPARK__SERVER__PORT", "--port"
    folder: Path  # relative paths count from here
    line: int | None = None  # of the file; None elsewhere

    @property
    def where(self) -> str:
        """Who said so and of which setting; a flag of the setting's own name says both."""
        said = self.origin.removeprefix("--set ").removeprefix("--").replace("-", "_")
        return self.origin if said == self.path else f"{self.origin}: {self.path}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake, in one line of text."""

    text: str
    line: int | None = None  # of the file; None elsewhere


def read_file(file: Path, faults: list[Fault]) -> list[Assignment]:
    """The settings in a YAML file.

    Unknown and repeated keys and odd numbers are added to the faults, each with its line.
    Raises SettingsError: no such file, not YAML.
    """
    text = config_text(file)
    try:
        loader = PlainLoader(text)
        root = loader.get_single_node()
        return [] if root is None else list(_walk(loader, root, "", file, faults))
    except yaml.YAMLError as error:
        raise SettingsError(not_yaml(file, error)) from error


def config_text(file: Path) -> str:
    """Raises SettingsError for a config file that cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"config file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"config file {file}: found bytes that are not UTF-8") from error


def not_yaml(file: Path, error: yaml.YAMLError) -> str:
    """What is wrong with a config file that is no YAML, and in which line."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"{file}: not YAML: {' '.join(str(error).split())}"
    mark = error.problem_mark or error.context_mark
    line = f":{mark.line + 1}" if mark else ""
    return f"{file}{line}: not YAML: {error.problem or error.context}"


def read_environment(environ: Mapping[str, str]) -> list[Assignment]:
    """Settings like DSPARK__KV__PAGE_SIZE.

    Raises SettingsError for one that is not a setting, or a number as no file may write it.
    """
    return [
        _written(_path_of_variable(name), value, name)
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX)
    ]


def read_flag(flag: str, name: str, value: str | bool) -> Assignment:
    """One flag, or one `--set name=value`. Raises SettingsError as `read_environment` does."""
    return _written(canonical_path(name, origin=flag), value, flag)


def _written(path: str, value: str | bool, origin: str) -> Assignment:
    """A value as text. Where a number is meant it is one that a file takes as well."""
    assignment = Assignment(path, value, origin, Path.cwd())
    takes = accepted(FIELDS[path])
    if isinstance(value, str) and ("an integer" in takes or "a number" in takes):
        try:
            refuse_odd(value)
        except OddNumber as odd:
            raise SettingsError(f"{assignment.where}: {odd.problem}") from None
    return assignment


def _path_of_variable(name: str) -> str:
    path = name.removeprefix(ENV_PREFIX).replace("__", ".").lower()
    path = PATH_ALIASES.get(path, path)
    if path in FIELDS:
        return path
    known = [ENV_PREFIX + path.replace(".", "__").upper() for path in FIELDS]
    raise SettingsError(f"unknown environment variable {name}{did_you_mean(name, known)}")


def _walk(
    loader: PlainLoader, node: yaml.Node, prefix: str, file: Path, faults: list[Fault]
) -> Iterator[Assignment]:
    """Flatten a mapping of sections into assignments, one for each value."""
    if _is_empty(node):
        return
    if not isinstance(node, yaml.MappingNode):
        where, line = prefix.rstrip(".") or "the file", _line(node)
        found = node.value if isinstance(node, yaml.ScalarNode) else "a list"
        said = f"{where}: found {found}; accepted: a mapping of settings"
        faults.append(Fault(f"{file}:{line}: {said}", line))
        return
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True)).replace("-", "_")
        name, line = prefix + key, _line(key_node)
        origin = f"{file}:{line}"
        if name in lines:
            again = f"{origin}: {name} is given twice; first in line {lines[name]}"
            faults.append(Fault(again, line))
            continue
        lines[name] = line
        if _is_section(name, value_node):
            yield from _walk(loader, value_node, f"{name}.", file, faults)
            continue
        value, complaint = _construct(loader, value_node)
        try:
            path = canonical_path(name, origin=origin)
        except SettingsError as error:
            faults.append(Fault(str(error), line))
            continue
        if complaint is None:
            yield Assignment(path, value, origin, file.resolve().parent, line)
        else:
            faults.append(Fault(f"{origin}: {name}: {complaint}", line))


def _construct(loader: PlainLoader, node: yaml.Node) -> tuple[object, str | None]:
    """A value, or what is wrong with a number in it."""
    try:
        return loader.construct_object(node, deep=True), None
    except OddNumber as odd:
        return None, odd.problem


def _is_section(name: str, value: yaml.Node) -> bool:
    """A mapping is one, known or not (what is in it gives the better complaint)."""
    if isinstance(value, yaml.MappingNode) and value.value and name not in FIELDS:
        return True
    return name in SECTIONS and (name not in PATH_ALIASES or _is_empty(value))


def _is_empty(node: yaml.Node) -> bool:
    is_scalar = isinstance(node, yaml.ScalarNode)
    return is_scalar and node.tag == "tag:yaml.org,2002:null"


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1
