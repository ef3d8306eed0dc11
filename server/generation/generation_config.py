"""Reads default sampling fields from a model's generation_config.json."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine import LoadError
from server.errors.validation_errors import describe, quote
from server.options import NEUTRAL_SAMPLING
from server.protocol.sampling_options import OptionFields
from server.settings.base import SettingsError
from server.settings.text_files import read_text

logger = logging.getLogger(__name__)

_FILE = "generation_config.json"
_NOT_SERVED: Mapping[str, float] = {  # field -> the value that has no effect
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}


def model_sampling(target: str, *, revision: str | None) -> dict[str, float]:
    """Return the fields of NEUTRAL_SAMPLING that the model's generation_config.json sets.

    Logs fields that this server does not apply. Raises LoadError for a file that is not a JSON
    object, and for a value that no request could have.
    """
    from transformers.utils import cached_file  # heavy: imported on use

    found = cached_file(
        target, _FILE, revision=revision, _raise_exceptions_for_missing_entries=False
    )
    return read_sampling(Path(found)) if found is not None else {}


def read_sampling(file: Path) -> dict[str, float]:
    """Read one file; see model_sampling."""
    values = read_json_object(file)
    _report_ignored(values)
    given = {name: values[name] for name in NEUTRAL_SAMPLING if values.get(name) is not None}
    if given.get("top_k") == 0:  # off in transformers
        given["top_k"] = -1
    try:
        OptionFields.model_validate(given)
    except ValidationError as error:
        message, _, _ = describe(error.errors(include_url=False))
        raise LoadError(
            f"{file}: {message} (with server.sampling_defaults: neutral the file is not read)"
        ) from None
    return given


def read_json_object(file: Path) -> dict[str, Any]:
    """Read a JSON file of a model. Raises LoadError unless it has one object."""
    try:
        values = json.loads(read_text(file))
    except SettingsError as error:
        raise LoadError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{file}: found text that is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise LoadError(f"{file}: found {quote(values)}; accepted: a JSON object")
    return values


def _report_ignored(values: Mapping[str, Any]) -> None:
    ignored = [
        f"{name}={quote(values[name])}"
        for name, neutral in _NOT_SERVED.items()
        if values.get(name) not in (None, neutral)
    ]
    if ignored:
        logger.warning("%s sets %s, which this server does not apply", _FILE, ", ".join(ignored))
