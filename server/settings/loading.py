"""Flags over environment over file over defaults, and a line for every mistake."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from server.settings.model_sources import PATHS_COUNT_FROM, why_no_model
from server.settings.names import FIELDS
from server.settings.rendering import accepted
from server.settings.schema import Settings, SettingsError
from server.settings.sources import Assignment, Fault, read_environment, read_file

_MODELS = ("model.path", "speculative.draft_model")
_FILES = (
    "model.chat_template",
    "server.api_key_file",
    "server.admin_api_key_file",
    "server.ssl_certfile",
    "server.ssl_keyfile",
)
_OUTPUTS = ("observability.profile_dir",)  # made when they are needed
_SECRETS = ("server.api_key", "server.admin_api_key")

_Problem = Mapping[str, Any]  # as pydantic tells it


@dataclass(frozen=True, slots=True)
class Resolved:
    """Valid settings, and for each one that is not a default, who set it."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(
    config: Path | None = None,
    *,
    flags: Sequence[Assignment] = (),
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Merge all sources and validate.

    Raises SettingsError naming field, found and accepted, a line for each that is at fault: those
    of the file in its order, then variables and flags, then what is missing.
    """
    faults: list[Fault] = []
    layers = [
        read_file(config, faults) if config is not None else [],
        read_environment(environ or {}),
        flags,
    ]
    given = {a.path: _with_full_path(a) for layer in layers for a in layer}
    settings, problems = None, {}
    try:
        settings = Settings.model_validate(_nested(given))
    except ValidationError as error:
        problems = _problems(error)
    # A name that is misspelt leaves another one missing, which is then no news.
    missing = [] if faults else [path for path in problems if path not in given]
    faults += [fault for a in given.values() if (fault := _fault(a, problems)) is not None]
    faults += [Fault(_sentence(path, problems[path], None)) for path in missing]
    if settings is None or faults:
        faults.sort(key=lambda fault: math.inf if fault.line is None else fault.line)
        raise SettingsError(*(fault.text for fault in faults))
    return Resolved(settings, {path: a.origin for path, a in given.items()})


def _with_full_path(assignment: Assignment) -> Assignment:
    """Make a path absolute that says where it starts from; hub ids and plain names stay."""
    value = assignment.value
    if assignment.path not in (*_MODELS, *_FILES, *_OUTPUTS) or not isinstance(value, str):
        return assignment
    if value.startswith("~"):
        return replace(assignment, value=str(Path(value).expanduser()))
    if value in (".", "..") or value.startswith(("./", "../")):
        return replace(assignment, value=str((assignment.folder / value).resolve()))
    return assignment


def _fault(assignment: Assignment, problems: Mapping[str, _Problem]) -> Fault | None:
    """What is wrong with one setting."""
    if assignment.path in problems:
        text = _sentence(assignment.path, problems[assignment.path], assignment)
        return Fault(text, assignment.line)
    missing = _missing_file(assignment)
    return Fault(missing, assignment.line) if missing is not None else None


def _missing_file(assignment: Assignment) -> str | None:
    """What is wrong with a name that should lead somewhere on this machine."""
    value = assignment.value
    if not isinstance(value, str):
        return None
    complaint = None
    if assignment.path in _MODELS:
        complaint = why_no_model(value)
    elif assignment.path in _FILES and not Path(value).is_file():
        complaint = f"found {value}, which is no file; accepted: a file ({PATHS_COUNT_FROM})"
    return f"{assignment.where}: {complaint}" if complaint is not None else None


def _nested(given: Mapping[str, Assignment]) -> dict[str, Any]:
    tree: dict[str, Any] = {name: {} for name in Settings.model_fields}
    for path, assignment in given.items():
        *parents, name = path.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = _value_of(assignment)
    return tree


def _value_of(assignment: Assignment) -> object:
    """Flags and variables are text; "null" in them is YAML's, where a field takes it."""
    can_be_null = "null" in accepted(FIELDS[assignment.path])
    return None if assignment.value == "null" and can_be_null else assignment.value


def _problems(error: ValidationError) -> dict[str, _Problem]:
    """The first of each setting, by path."""
    problems: dict[str, _Problem] = {}
    for problem in error.errors(include_url=False):
        problems.setdefault(_path_of(problem["loc"]), dict(problem))
    return problems


def _path_of(loc: tuple[int | str, ...]) -> str:
    """The setting's dotted path; pydantic appends the branch of a union that it tried."""
    parts = [str(part) for part in loc]
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in FIELDS:
            return ".".join(parts[:end])
    return ".".join(parts)


def _sentence(path: str, problem: _Problem, assignment: Assignment | None) -> str:
    field = FIELDS.get(path)
    if field is None:  # two settings that do not go together
        return str(problem["msg"]).removeprefix("Value error, ")
    where = assignment.where if assignment else path
    if problem["type"] == "missing":
        return f"{where} is missing; accepted: {accepted(field)} (give --config FILE or --{path})"
    assert assignment is not None, f"the default of {path} is not valid: {problem}"
    found = "(hidden)" if path in _SECRETS else repr(assignment.value)
    return f"{where}: found {found}; accepted: {accepted(field)}"
