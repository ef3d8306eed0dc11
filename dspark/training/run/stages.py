"""Logs the duration of the stages of a training. Loads no torch."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def timed_stage(name: str) -> Iterator[None]:
    """Log the seconds of the block when it ends without an error."""
    started = time.monotonic()
    yield
    logger.info("stage=%s seconds=%.0f", name.replace(" ", "_"), time.monotonic() - started)
