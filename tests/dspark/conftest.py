"""Fixtures of the tests that run commands."""

from collections.abc import Iterator

import pytest

from tests.support.server.logs import log_given_back
from tests.support.server.tiny_pair import TinyPair


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Restores the logging that a command has configured."""
    with log_given_back():
        yield


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return TinyPair.write(tmp_path_factory.mktemp("pair"))
