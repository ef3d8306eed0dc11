"""Logs how long the stages of a start take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger


@contextmanager
def logged_stage(logger: Logger, what: str) -> Iterator[None]:
    """Log the seconds that the block takes; nothing if it raises."""
    started = time.monotonic()
    yield
    logger.info("%s took %.1f s", what, time.monotonic() - started)
