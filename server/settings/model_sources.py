"""Checks the name of a model in settings: a folder, a GGUF file, a hub id, or the demo's name."""

import os.path

from server.settings.base import shown

DEMO_TARGET = "smollm2-135m-instruct"
DEMO_PREFIX = "demo:"
DEMO_NAME = f"{DEMO_PREFIX}{DEMO_TARGET}"
GGUF_ENDING = ".gguf"

PATHS_COUNT_FROM = (
    "./ and ../ count from the YAML file that names the path, other relative paths from the "
    "working directory"
)
_FOLDER_OR_HUB_ID = (
    f"a folder with config.json ({PATHS_COUNT_FROM}), or a hub id such as name or owner/name"
)


def is_gguf(name: str) -> bool:
    """Return whether a name is that of an existing GGUF file."""
    return name.endswith(GGUF_ENDING) and os.path.isfile(name)


def why_no_target(name: str) -> str | None:
    """Describe what is wrong with the name of a target; see why_no_model."""
    if is_gguf(name):
        return None
    if os.path.isfile(name) or (name.endswith(GGUF_ENDING) and not os.path.isdir(name)):
        kind = "which is no GGUF file" if os.path.exists(name) else "which does not exist"
        return (
            f"found {shown(name)}, {kind}; accepted: a file that ends in {GGUF_ENDING}, or "
            f"{_FOLDER_OR_HUB_ID}"
        )
    return why_no_model(name)


def why_no_model(name: str) -> str | None:
    """Describe what is wrong with a name, and what is accepted; None for a possible name.

    No hub is contacted: whether it has the model is known when the model is loaded.
    """
    if name == DEMO_NAME or os.path.isdir(name):
        return None
    found = f"found {shown(name)}"
    if name.startswith(DEMO_PREFIX):
        return f"{found}; accepted: {DEMO_NAME}"
    if os.path.isabs(name):
        return f"{found}, which is no folder; accepted: {_FOLDER_OR_HUB_ID}"
    if not _can_be_hub_id(name):
        return f"{found}, which is no folder and no hub id; accepted: {_FOLDER_OR_HUB_ID}"
    return None


def _can_be_hub_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError  # heavy: only when it is needed
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
