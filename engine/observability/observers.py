"""Calls observers; one that raises is logged once and removed."""

import logging
from collections.abc import Callable, Iterable
from typing import Generic, ParamSpec

logger = logging.getLogger(__name__)

P = ParamSpec("P")


class Observers(Generic[P]):
    """Calls each observer in order. What an observer raises never reaches the caller."""

    def __init__(self, observers: Iterable[Callable[P, object]]) -> None:
        self._observers = list(observers)
        self.failure: Exception | None = None  # of the first observer that was removed

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every observer that has not been removed."""
        for observe in tuple(self._observers):
            try:
                observe(*args, **kwargs)
            except Exception as error:
                logger.exception("observer removed, because it raised: %r", observe)
                self._observers.remove(observe)
                self.failure = self.failure or error
