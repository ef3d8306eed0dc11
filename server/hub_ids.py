"""What can be the id of a model on a hub."""

FOLDER_OR_HUB_ID = "a folder with config.json, or a hub id such as name or owner/name"


def can_be_hub_id(name: str) -> bool:
    """Whether a hub could have a model of this name; whether one has is not asked."""
    from huggingface_hub.errors import HFValidationError  # heavy for a look at settings
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
