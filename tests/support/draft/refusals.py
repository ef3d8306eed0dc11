"""Assertions about refused checkpoints."""

from draft import DraftLoadError


def assert_names(error: DraftLoadError, field: str) -> None:
    """Check that the message is one line naming the field, found and accepted values."""
    message = str(error)
    assert message.startswith(f"draft {field}: found ")
    assert ", accepted: " in message
    assert "\n" not in message
