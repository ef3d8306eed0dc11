"""Fixtures of the server's tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.server.fakes import FakeEngine, app_with

Connect = Callable[..., TestClient]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """connect(engine, **options) returns a client of an app over that engine, without a network."""
    with ExitStack() as stack:

        def make(engine: FakeEngine | None = None, **options: Any) -> TestClient:
            app = app_with(engine or FakeEngine(), **options)
            return stack.enter_context(TestClient(app, raise_server_exceptions=True))

        yield make
