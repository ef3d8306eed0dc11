"""A training's YAML file and flags -> settings, and a line for every mistake."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dspark.runtime.packaged import DEMO_DRAFT
from dspark.training.config import (
    AnswersConfig,
    DesignConfig,
    FeaturesConfig,
    LearningConfig,
    OwnPromptsConfig,
    TrainingConfig,
)
from dspark.training.settings.schema import TrainingSettings
from server.settings.engine_config import count_or_none
from server.settings.model_sources import DEMO_NAME, why_no_model
from server.settings.names import all_fields, did_you_mean
from server.settings.rendering import accepted, default_text
from server.settings.schema import SettingsError
from server.settings.sources import config_text, not_yaml
from server.settings.yaml_numbers import OddNumber, PlainLoader

FIELDS = dict(all_fields(TrainingSettings))

_PATHS = (
    "output",
    "model.path",
    "model.chat_template",
    "answers.draft_model",
    "training.start_draft",
)
_LEARNING = (
    "start",
    "start_draft",
    "checkpoint_every",
    "validate_every",
    "validation_sequences",
    "export",
    "compile",
)
_SEE = "see docs/training.md"


def load_training_settings(config: Path, *, more: Sequence[str] = ()) -> TrainingSettings:
    """The file, corrected by NAME=VALUE items. Raises SettingsError naming field and accepted.

    Paths that begin with ./ or ../ are looked for beside the file; in an item, from the working
    directory.
    """
    given = dict(_with_full_paths(_read(config), config.resolve().parent))
    for item in more:
        name, equals, value = item.partition("=")
        if not equals:
            raise SettingsError(f"--set: found {item}; accepted: NAME=VALUE")
        _refuse_unknown(name, f"--set {name}")
        given |= dict(_with_full_paths({name: _value_of(name, value)}, Path.cwd()))
    try:
        settings = TrainingSettings.model_validate(_nested(given))
    except ValidationError as error:
        raise SettingsError(*_complaints(error, config)) from None
    _check_paths(settings, config)
    return settings


def to_training_config(settings: TrainingSettings, *, target: str) -> TrainingConfig:
    """What the engine takes. `target` is the folder or hub id that the model's name stands for."""
    model, data, device = settings.model, settings.data, settings.device
    design: dict[str, Any] = {
        name: None if value == "auto" else value
        for name, value in settings.design.model_dump().items()
    }
    steps = settings.training.model_dump()
    answers = settings.answers.model_dump()
    if answers["draft_model"] == DEMO_NAME:
        answers["draft_model"] = str(DEMO_DRAFT)
    return TrainingConfig(
        target=target,
        target_name=model.path,
        output=Path(settings.output),
        revision=model.revision,
        dtype=model.dtype,
        device=device.type,
        num_threads=count_or_none(device.num_threads),
        trust_remote_code=model.trust_remote_code,
        max_tokens=data.max_tokens,
        own_prompts=OwnPromptsConfig(**settings.own_prompts.model_dump()),
        answers=AnswersConfig(**answers),
        features=FeaturesConfig(**settings.features.model_dump()),
        design=DesignConfig(**design),
        learning=LearningConfig(**{name: steps[name] for name in _LEARNING}),
        recipe={name: value for name, value in steps.items() if name not in _LEARNING},
        evaluation_prompts=settings.evaluation.prompts_per_set,
    )


def training_table() -> str:
    """Every setting as a Markdown table."""
    lines = ["| setting | accepted | default | meaning |", "|---|---|---|---|"]
    for path, field in FIELDS.items():
        cells = [f"`{path}`", accepted(field), f"`{default_text(field)}`", field.description or ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _value_of(name: str, written: str) -> object:
    try:
        return yaml.load(written, Loader=PlainLoader)
    except OddNumber as odd:
        raise SettingsError(f"--set {name}: {odd.problem}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"--set {name}: not YAML: {' '.join(str(error).split())}") from error


def _read(config: Path) -> Mapping[str, object]:
    text = config_text(config)
    try:
        content = yaml.load(text, Loader=PlainLoader)
    except OddNumber as odd:
        line = odd.problem_mark.line + 1 if odd.problem_mark is not None else "?"
        raise SettingsError(f"{config}:{line}: {odd.problem}") from None
    except yaml.YAMLError as error:
        raise SettingsError(not_yaml(config, error)) from error
    if not isinstance(content, dict):
        raise SettingsError(f"{config}: found no settings; accepted: a mapping, {_SEE}")
    return dict(_flat(content, "", str(config)))


def _flat(content: Mapping[Any, Any], prefix: str, origin: str) -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        name = f"{prefix}{key}".replace("-", "_")
        is_section = any(path.startswith(f"{name}.") for path in FIELDS)
        if is_section and isinstance(value, Mapping):
            yield from _flat(value, f"{name}.", origin)
        elif is_section and value is None:
            continue
        elif is_section:
            said = f"{name}: found {value!r}; accepted: a mapping of settings"
            raise SettingsError(f"{origin}: {said}")
        else:
            _refuse_unknown(name, origin)
            yield name, value


def _refuse_unknown(name: str, origin: str) -> None:
    if name not in FIELDS:
        near = did_you_mean(name, FIELDS, otherwise=_SEE)
        raise SettingsError(f"{origin}: unknown setting {name}{near}")


def _with_full_paths(given: Mapping[str, object], folder: Path) -> Iterator[tuple[str, object]]:
    for name, value in given.items():
        if name in _PATHS and isinstance(value, str):
            yield name, _full(value, folder, is_path=name == "output")
        elif name == "data.prompts" and isinstance(value, list):
            yield name, [_full(str(item), folder, is_path=True) for item in value]
        elif name == "data.prompts" and isinstance(value, str):
            yield name, [_full(value, folder, is_path=True)]
        else:
            yield name, value


def _full(value: str, folder: Path, *, is_path: bool) -> str:
    """Absolute where it says so, or can be nothing but a path; hub ids stay."""
    if value.startswith("~"):
        return str(Path(value).expanduser())
    if is_path or value in (".", "..") or value.startswith(("./", "../")):
        return str((folder / value).resolve())
    return value


def _check_paths(settings: TrainingSettings, config: Path) -> None:
    """Refuse at once what would be missed after hours."""
    for file in settings.data.prompts:
        if not Path(file).is_file():
            raise SettingsError(
                f"{config}: data.prompts: found {file}, which is no file; accepted: JSONL files, "
                "or none (data.prompts=[]) with own_prompts.count above 0: the target writes them"
            )
    for setting, name in (
        ("model.path", settings.model.path),
        ("answers.draft_model", settings.answers.draft_model),
    ):
        if name is not None and (complaint := why_no_model(name)) is not None:
            raise SettingsError(f"{config}: {setting}: {complaint}")
    start = settings.training.start_draft
    if start is not None and not Path(start).is_dir():
        raise SettingsError(f"{config}: training.start_draft: found {start}, which is no folder")


def _nested(given: Mapping[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {"model": {}, "data": {}}
    for path, value in given.items():
        *parents, name = path.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = value
    return tree


def _complaints(error: ValidationError, config: Path) -> list[str]:
    """A line for each setting that is at fault, and for those that do not go together."""
    by_path: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        parts = [str(part) for part in problem["loc"]]
        while parts and ".".join(parts) not in FIELDS:
            parts.pop()
        path = ".".join(parts)
        if not parts:
            said = str(problem["msg"]).removeprefix("Value error, ")
        elif problem["type"] == "missing":
            said = f"{path} is missing; accepted: {accepted(FIELDS[path])}"
        else:
            said = f"{path}: found {problem['input']!r}; accepted: {accepted(FIELDS[path])}"
        by_path.setdefault(path or said, f"{config}: {said}")
    return list(by_path.values())
