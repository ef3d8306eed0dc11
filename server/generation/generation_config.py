"""Sampling fields that a model brings along for requests that leave them out."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine import LoadError
from server.options import NEUTRAL_SAMPLING

logger = logging.getLogger(__name__)

_FILE = "generation_config.json"
_NOT_SERVED: Mapping[str, float] = {  # and the value that has no effect
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}


def model_sampling(target: str, *, revision: str | None) -> dict[str, float]:
    """What the model's generation_config.json says of the sampling fields in NEUTRAL_SAMPLING.

    Says in the log what else is in it that this server does not apply. Raises LoadError for a
    file that is not JSON.
    """
    from transformers.utils import cached_file  # heavy: not before there is something to load

    found = cached_file(
        target, _FILE, revision=revision, _raise_exceptions_for_missing_entries=False
    )
    return read_sampling(Path(found)) if found is not None else {}


def read_sampling(file: Path) -> dict[str, float]:
    """The same for a file at hand."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadError(f"{file}: found text that is not JSON: {error}") from error
    _report_ignored(values)
    given = {name: values[name] for name in NEUTRAL_SAMPLING if values.get(name) is not None}
    if given.get("top_k") == 0:  # transformers' word for off
        given["top_k"] = -1
    return given


def _report_ignored(values: Mapping[str, Any]) -> None:
    ignored = [
        f"{name}={values[name]}"
        for name, neutral in _NOT_SERVED.items()
        if values.get(name) not in (None, neutral)
    ]
    if ignored:
        logger.warning("%s asks for %s, which is not served", _FILE, ", ".join(ignored))
