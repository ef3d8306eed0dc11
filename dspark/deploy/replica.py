"""Runs one replica: the server's application over an engine, without a socket."""

import os
from collections.abc import AsyncGenerator
from contextlib import ExitStack

from ray import serve
from starlette.types import Message, Scope

from dspark.deploy.asgi_calls import call_asgi
from dspark.deploy.merging import Answer
from dspark.deploy.route import Route, replica_name
from dspark.runtime.logs import configure_log
from dspark.runtime.models import resolved_engine_config, running_engine
from dspark.runtime.service import keys_of, server_options, tracing
from dspark.runtime.text import load_text
from engine.platform.openmp import limit_spinning
from server.app import create_app, start_body_process
from server.settings.schema import Settings


class Replica:
    """A Ray Serve deployment. Ray replaces a replica whose process or engine has ended."""

    def __init__(self, settings: Settings) -> None:
        """Load the models; takes as long as the start of a server."""
        self._stack = ExitStack()
        limit_spinning()
        configure_log(settings.observability.log_level)
        self._name = replica_name(serve.get_replica_context().replica_id.unique_id)
        config = resolved_engine_config(settings)
        text = load_text(settings, config)
        options = server_options(settings, config, keys=keys_of(settings), replica=self._name)
        listeners = self._stack.enter_context(tracing(settings))
        self._engine = self._stack.enter_context(running_engine(config))
        self._app = create_app(engine=self._engine, text=text, options=options, listeners=listeners)
        start_body_process(self._app)

    async def stream(
        self, route: Route, scope: Scope, body: bytes
    ) -> AsyncGenerator[tuple[str, list[Message]], None]:
        """Yield this replica's name with batches of ASGI messages. The router reads the route."""
        async for batch in call_asgi(self._app, scope, body):
            yield self._name, batch

    async def answer(self, scope: Scope, body: bytes) -> Answer:
        """Return the whole response to a request that goes to every replica."""
        messages = [m async for batch in call_asgi(self._app, scope, body) for m in batch]
        head, *parts = messages
        return Answer(
            replica=self._name,
            process_id=os.getpid(),
            status=head["status"],
            headers=tuple(head["headers"]),
            body=b"".join(part.get("body", b"") for part in parts),
        )

    def check_health(self) -> None:
        """Raise RuntimeError once the engine has died, so that Ray replaces this replica."""
        if not self._engine.is_healthy():
            raise RuntimeError("the engine's step loop has stopped")

    def __del__(self) -> None:
        """Stop the engine; Ray has let running requests finish."""
        self._stack.close()
