"""The demo target for tests marked `weights`: fetched into the user's cache once."""

import os
from pathlib import Path

import pytest

from dspark.demo.target import ensure_demo_target
from engine.platform.cache_dir import default_cache_dir
from tests.support.paths import GOLDEN, PRETRAINED


class SilentProgress:
    """Discards progress."""

    def start(self, label: str, *, total: int | None) -> None:
        pass

    def update(self, done: int) -> None:
        pass


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """Folder of the demo target; the first test to ask on a fresh machine waits for it."""
    return ensure_demo_target(cache_dir=default_cache_dir(os.environ), progress=SilentProgress())


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    """Folder of the draft that ships with the project."""
    return PRETRAINED


@pytest.fixture(scope="session")
def golden_draft() -> Path:
    """Folder of the draft that the golden traces were made with."""
    return GOLDEN / "traces" / "draft"
