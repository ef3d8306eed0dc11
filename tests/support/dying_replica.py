"""`dspark` with replicas whose engine dies where a request names FATAL and a new file."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NoReturn

from starlette.types import Message, Scope

from dspark.cli.main import main as dspark
from dspark.deploy import application
from dspark.deploy.replica import Replica
from dspark.deploy.route import Route
from tests.support.deployment import FATAL


class DyingReplica(Replica):
    """A replica of the project, but for a fault that a test can cause."""

    async def stream(
        self, route: Route, scope: Scope, body: bytes
    ) -> AsyncGenerator[tuple[str, list[Message]], None]:
        fatal = re.search(FATAL.encode() + rb"([/\w.-]+)", body)
        if fatal and not (file := Path(fatal[1].decode())).exists():
            file.touch()
            worker: Any = self._engine
            worker._engine.step = _fail
        async for item in super().stream(route, scope, body):
            yield item


def _fail(**arguments: object) -> NoReturn:
    raise RuntimeError("a fault of the test")


def main() -> None:
    application.Replica = DyingReplica  # type: ignore[misc]
    raise SystemExit(dspark())
