"""Loads settings: flags over environment over file over defaults, with a line for every mistake."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from pydantic import ValidationError

from server.settings.base import Accepts, SettingsError, quoted, shown
from server.settings.model_sources import PATHS_COUNT_FROM, why_no_model, why_no_target
from server.settings.names import Catalog, S, Setting
from server.settings.schema import SERVING, Settings
from server.settings.sources import Assignment, Fault, once, read_environment, read_file
from server.settings.text_files import is_unicode
from server.settings.yaml_nodes import Value

_Problem = Mapping[str, Any]  # as pydantic reports it
_MODELS = {"target": why_no_target, "model": why_no_model}


@dataclass(frozen=True, slots=True)
class Resolved(Generic[S]):
    """Valid settings, and the origin of each one that is not a default."""

    settings: S
    origins: Mapping[str, str]
    catalog: Catalog[S]


def load_settings(
    config: Path | None = None,
    *,
    flags: Sequence[Assignment] = (),
    environ: Mapping[str, str] | None = None,
) -> Resolved[Settings]:
    """Load the server's settings, as `load` does."""
    return load(SERVING, config, flags=flags, environ=environ)


def load(
    catalog: Catalog[S],
    config: Path | None = None,
    *,
    flags: Sequence[Assignment] = (),
    environ: Mapping[str, str] | None = None,
) -> Resolved[S]:
    """Merge all sources and validate them.

    Raises SettingsError with a line for each mistake that names field, found and accepted: first
    the file's in their order, then those of variables and flags, then what is missing.
    """
    faults: list[Fault] = []
    sources = (
        read_file(catalog, config, faults) if config is not None else (),
        read_environment(catalog, environ or {}, faults),
        once(flags, faults),
    )
    given = {a.path: _prepared(a, catalog.settings[a.path]) for source in sources for a in source}
    settings, problems = None, {}
    try:
        settings = catalog.schema.model_validate(_nested(catalog, given))
    except ValidationError as error:
        problems = _problems(catalog, error)
    # A misspelt name leaves another one missing, which is no second mistake.
    missing = [] if faults else [path for path in problems if path not in given]
    faults += [
        Fault(f"{a.where}: {complaint}", a.line)
        for a in given.values()
        if (complaint := _complaint(a, catalog.settings[a.path], problems)) is not None
    ]
    faults += [Fault(_missing(path, problems[path], catalog)) for path in missing]
    if settings is None or faults:
        faults.sort(key=lambda fault: math.inf if fault.line is None else fault.line)
        raise SettingsError(*(fault.text for fault in faults))
    return Resolved(settings, {path: a.origin for path, a in given.items()}, catalog)


def _prepared(assignment: Assignment, setting: Setting) -> Assignment:
    """Split a text into a list where the setting takes one, and make paths absolute."""
    value = assignment.value
    if value == "null" and setting.takes_null:
        value = None
    if isinstance(value, str) and setting.is_list:
        value = _split(value)
    if setting.path_kind is not None and isinstance(value, str | list):
        value = _full(value, setting.path_kind, assignment.folder)
    return replace(assignment, value=value)


def _split(text: str) -> list[Value]:
    """Split "a, b" or "[a, 'b']"."""
    if text.startswith("[") and text.endswith("]"):
        return [part.strip(" '\"") for part in text[1:-1].split(",") if part.strip()]
    return [part.strip() for part in text.split(",") if part.strip()]


def _full(value: Value, kind: Accepts, folder: Path) -> Value:
    """Make a path absolute where it says from which folder it counts; hub ids stay."""
    if isinstance(value, list):
        return [_full(item, kind, folder) for item in value]
    if not isinstance(value, str) or not is_unicode(value) or not value:
        return value
    if value.startswith("~"):
        return os.path.expanduser(value)
    if kind.is_beside_config or value in (".", "..") or value.startswith(("./", "../")):
        return str((folder / value).resolve())
    return value


def _complaint(
    assignment: Assignment, setting: Setting, problems: Mapping[str, _Problem]
) -> str | None:
    """Describe what is wrong with a value; None if nothing is."""
    value = assignment.value
    found = "(hidden)" if setting.is_secret else quoted(value)
    texts = [text for text in (value if isinstance(value, list) else [value]) if text is not None]
    if not all(is_unicode(str(text)) for text in texts):
        return f"found {found}; accepted: Unicode text without NUL and lone surrogates"
    if assignment.path in problems:
        return f"found {found}; accepted: {setting.accepted}"
    if setting.path_kind is None:
        return None
    complaints = (_path_complaint(str(text), setting) for text in texts)
    return next((complaint for complaint in complaints if complaint is not None), None)


def _path_complaint(path: str, setting: Setting) -> str | None:
    assert setting.path_kind is not None
    kind = str(setting.path_kind.path)
    if kind in _MODELS:
        return _MODELS[kind](path)
    exists = {"file": os.path.isfile, "folder": os.path.isdir}.get(kind)
    if exists is None or exists(path):
        return None
    counted = "" if setting.path_kind.is_beside_config else f" ({PATHS_COUNT_FROM})"
    return f"found {shown(path)}, which is no {kind}; accepted: {setting.accepted}{counted}"


def _nested(catalog: Catalog[Any], given: Mapping[str, Assignment]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for section in sorted(catalog.sections):
        _branch(tree, section.split("."))
    for path, assignment in given.items():
        *parents, name = path.split(".")
        _branch(tree, parents)[name] = assignment.value
    return tree


def _branch(tree: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        tree = tree.setdefault(name, {})
    return tree


def _problems(catalog: Catalog[Any], error: ValidationError) -> dict[str, _Problem]:
    """Find the first problem of each setting, by path."""
    problems: dict[str, _Problem] = {}
    for problem in error.errors(include_url=False):
        parts = [str(part) for part in problem["loc"]]
        # pydantic appends the branch of a union that it tried, and the place in a list
        ends = range(len(parts), 0, -1)
        paths = (".".join(parts[:end]) for end in ends)
        path = next((path for path in paths if path in catalog.settings), ".".join(parts))
        problems.setdefault(path, dict(problem))
    return problems


def _missing(path: str, problem: _Problem, catalog: Catalog[Any]) -> str:
    setting = catalog.settings.get(path)
    if setting is None:  # settings that do not go together
        return str(problem["msg"]).removeprefix("Value error, ")
    assert problem["type"] == "missing", f"the default of {path} is not valid: {problem}"
    return f"{path} is missing; accepted: {setting.accepted} (give --config FILE or --{path})"
