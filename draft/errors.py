"""Defines DraftLoadError."""

_LONGEST_FOUND = 120  # characters; a list of fifty tensor names is not one line


class DraftLoadError(Exception):
    """Raised when a draft cannot be served.

    The message is one line: the field (or tensor, or file), found, accepted.
    """

    def __init__(self, field: str, *, found: object, accepted: str) -> None:
        text = "nothing" if found is None else " ".join(str(found).split())
        if len(text) > _LONGEST_FOUND:
            text = text[: _LONGEST_FOUND - 3] + "..."
        super().__init__(f"draft {field}: found {text}, accepted: {accepted}")
        self.field = field
