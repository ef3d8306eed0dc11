"""Defines what every measurement returns."""

from collections.abc import Mapping
from typing import Protocol


class Outcome(Protocol):
    """A result with a table, JSON values and a verdict."""

    @property
    def holds(self) -> bool:
        """False if a guarantee is violated."""
        ...

    def lines(self) -> list[str]:
        """Return the table for people."""
        ...

    def values(self) -> Mapping[str, object]:
        """Return every number, JSON-ready."""
        ...
