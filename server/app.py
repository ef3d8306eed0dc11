"""Creates the HTTP application over any engine."""

from collections.abc import Callable, Sequence
from functools import partial

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse

from engine import EngineClient
from server.errors.api_errors import install_error_handlers
from server.generation.chat_requests import ChatProcessor
from server.generation.generator import TextGenerator
from server.generation.input_processor import InputProcessor
from server.http.access_log import log_request
from server.http.auth import ApiKeys
from server.http.body_parser import BodyParser
from server.http.metrics import ServerMetrics
from server.http.middleware import (
    AbsoluteTargets,
    BodyLimit,
    DirectSend,
    HeadRequests,
    InternalErrors,
    RequestIds,
)
from server.http.request_records import RequestRecord, RequestRecorder
from server.options import ServerOptions
from server.parsers.chat_parser import ChatParser
from server.playground.router import PLAYGROUND_PATHS, playground_routes
from server.routes.admin import admin_routes
from server.routes.anthropic.router import anthropic_routes
from server.routes.docs_page import add_docs_page
from server.routes.native.router import native_routes
from server.routes.openai.router import openai_routes
from server.routes.openapi_errors import ERRORS
from server.routes.responder import Responder
from server.routes.responses.router import responses_routes
from server.routes.responses.store import ResponseStore
from server.text.tokenizer import TextCodec

_OPEN_PATHS = frozenset({"/health"})
_COMPLETION_PATHS = frozenset(
    {"/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"}
)
# Whether /abort_request needs an admin key is in its body, which is read before that check.
_SHORT_BODIES = {"/abort_request": 4096}


def create_app(
    *,
    engine: EngineClient,
    text: TextCodec,
    options: ServerOptions,
    listeners: Sequence[Callable[[RequestRecord], None]] = (),
) -> FastAPI:
    """Create the application. The caller starts and stops the engine.

    Each listener gets the record of every finished request.
    """
    app = FastAPI(
        title="DSpark server",
        default_response_class=JSONResponse,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.is_draining = False
    app.state.body_parser = BodyParser()
    metrics = ServerMetrics(replica=options.replica)
    generator = TextGenerator(
        engine=engine,
        text=text,
        metrics=metrics,
        limits=options.limits,
        capacity=options.capacity,
        replica=options.replica,
    )
    input_processor = InputProcessor(text=text, info=engine.info, options=options)
    chats = ChatProcessor(
        input_processor=input_processor,
        parser=ChatParser(
            text=text, tool_parser=options.tool_parser, reasoning_parser=options.reasoning_parser
        ),
    )
    responder = Responder(generator=generator, keepalive_s=options.keepalive_s)
    max_len = engine.info.served_max_len
    app.include_router(
        native_routes(
            responder=responder,
            input_processor=input_processor,
            text=text,
            max_len=max_len,
            served_name=options.served_name,
        )
    )
    app.include_router(
        openai_routes(
            responder=responder,
            input_processor=input_processor,
            chats=chats,
            text=text,
            served_name=options.served_name,
            max_len=max_len,
        )
    )
    app.include_router(
        anthropic_routes(responder=responder, chats=chats, served_name=options.served_name)
    )
    app.include_router(
        responses_routes(
            responder=responder,
            generator=generator,
            chats=chats,
            text=text,
            served_name=options.served_name,
            store=ResponseStore(max_responses=options.responses_store),
            replica=options.replica,
        )
    )
    app.include_router(
        admin_routes(
            engine=engine,
            generator=generator,
            metrics=metrics,
            options=options,
            is_draining=lambda: bool(app.state.is_draining),
        )
    )
    add_docs_page(app)
    open_paths = _OPEN_PATHS
    if options.playground:
        app.include_router(playground_routes())
        open_paths |= PLAYGROUND_PATHS
    install_error_handlers(app)
    # The middleware added last handles a request first.
    app.add_middleware(HeadRequests)
    app.add_middleware(InternalErrors)
    app.add_middleware(BodyLimit, max_bytes=options.max_body_bytes, max_bytes_of=_SHORT_BODIES)
    app.add_middleware(ApiKeys, keys=options.keys, open_paths=open_paths)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )
    listeners = [
        partial(_count_request, metrics),
        *([log_request] if options.log_requests else []),
        *listeners,
    ]
    app.add_middleware(RequestRecorder, listeners=listeners)
    app.add_middleware(RequestIds, replica=options.replica)
    app.add_middleware(DirectSend)
    app.add_middleware(AbsoluteTargets)
    return app


def _count_request(metrics: ServerMetrics, record: RequestRecord) -> None:
    if record.path in _COMPLETION_PATHS:
        metrics.count_request(record.status)


def begin_draining(app: FastAPI) -> None:
    """Make /ready return 503, so that load balancers stop sending requests."""
    app.state.is_draining = True


def start_body_process(app: FastAPI) -> None:
    """Start the process for large bodies, so that the first one does not wait for it."""
    app.state.body_parser.start()
