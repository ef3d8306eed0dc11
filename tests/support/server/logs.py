"""Restores logging after commands that configure it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = ("dspark", "server", "engine", "draft", "kv_pool")


@contextmanager
def log_given_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in _NAMES}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
