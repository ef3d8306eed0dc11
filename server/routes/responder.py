"""Generates the completions of one HTTP request and sends them, whole or as a stream."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from server.generation.deltas import CompletionOutput
from server.generation.generator import TextGenerator
from server.generation.input_processor import TokenizedRequest
from server.routes.sse import Encoder, EventStream, cancel_on_disconnect
from server.routes.sse_dialects import OPENAI, Dialect


class Responder:
    """Responds with one JSON object, or with server-sent events."""

    def __init__(self, *, generator: TextGenerator, keepalive_s: float) -> None:
        self._generator = generator
        self._keepalive_s = keepalive_s

    async def whole(
        self,
        request: Request,
        tokenized: Sequence[TokenizedRequest],
        build: Callable[[Sequence[CompletionOutput]], object],
    ) -> Response:
        """Respond with the object that `build` makes of the finished completions."""
        generation = self._generator.generate(
            _owned(request, tokenized), record=request.state.record
        )
        return JSONResponse(build(await cancel_on_disconnect(request.receive, generation)))

    async def stream(
        self,
        request: Request,
        tokenized: Sequence[TokenizedRequest],
        encoder: Encoder,
        *,
        dialect: Dialect = OPENAI,
        token_by_token: bool = False,
        on_end: Callable[[], None] = lambda: None,
    ) -> Response:
        """Respond with events. A request that is refused before the first one gets its status.

        on_end is called once, when the stream has ended, or was refused.
        """
        deltas = self._generator.stream(
            _owned(request, tokenized),
            keepalive_s=self._keepalive_s,
            record=request.state.record,
            token_by_token=token_by_token,
        )
        return await EventStream.start(request, deltas, encoder, dialect, on_end)


def _owned(request: Request, tokenized: Sequence[TokenizedRequest]) -> Sequence[TokenizedRequest]:
    """Return the requests with the caller's digest as their owner."""
    owner: str = request.state.owner
    return [replace(each, owner=owner) for each in tokenized] if owner else tokenized
