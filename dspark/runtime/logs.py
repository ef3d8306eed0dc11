"""Configures the log of a process."""

import logging
import sys

from dspark.runtime.models import silence_libraries

_OURS = ("dspark", "server", "engine", "draft", "kv_pool")


def configure_log(level: str) -> None:
    """Log lines of this level to stderr; those of libraries from warnings on."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    silence_libraries()
