"""What may stand for a model in settings: a folder, a hub id, or the demo's name."""

from pathlib import Path

DEMO_TARGET = "smollm2-135m-instruct"
DEMO_PREFIX = "demo:"
DEMO_NAME = f"{DEMO_PREFIX}{DEMO_TARGET}"

PATHS_COUNT_FROM = (
    "./ and ../ count from the YAML file that says so, other relative paths from the working "
    "directory"
)
_FOLDER_OR_HUB_ID = (
    f"a folder with config.json ({PATHS_COUNT_FROM}), or a hub id such as name or owner/name"
)


def why_no_model(name: str) -> str | None:
    """What is wrong with a name by which no model can be had, and what is accepted.

    None for the others, of which a hub may still know nothing: it is asked when a model is loaded.
    """
    if name == DEMO_NAME or Path(name).is_dir():
        return None
    if name.startswith(DEMO_PREFIX):
        return f"found {name}; accepted: {DEMO_NAME}"
    if Path(name).is_absolute():
        return f"found {name}, which is no folder; accepted: {_FOLDER_OR_HUB_ID}"
    if not _can_be_hub_id(name):
        return f"found {name}, which is no folder and no hub id; accepted: {_FOLDER_OR_HUB_ID}"
    return None


def _can_be_hub_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError  # heavy for a look at settings
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
