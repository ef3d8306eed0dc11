"""How long each stage of a training took. No torch here."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def timed_stage(name: str) -> Iterator[None]:
    """Log how long a stage took, once it is done."""
    started = time.monotonic()
    yield
    logger.info("stage=%s seconds=%.0f", name.replace(" ", "_"), time.monotonic() - started)
