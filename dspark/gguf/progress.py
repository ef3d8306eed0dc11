"""What long work shows of its progress."""

from typing import Protocol


class Progress(Protocol):
    """Shows the progress of long work."""

    def start(self, label: str, *, total: int | None) -> None:
        """Begin a piece of work of `total` bytes, or of unknown length."""
        ...

    def update(self, done: int) -> None:
        """Show the bytes done so far; called about five times a second, also without change."""
        ...
