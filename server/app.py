"""The HTTP service over any engine: the real one, or a fake in a test."""

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
from server.http.metrics import ServerMetrics
from server.http.middleware import BodyLimit, Crashes, Heads, RequestIds, ShortWay
from server.http.request_records import Records, RequestRecord
from server.options import ServerOptions
from server.parsers.chat_parser import ChatParser
from server.routes.admin import control_routes
from server.routes.anthropic import anthropic_routes
from server.routes.docs_page import add_docs_page
from server.routes.native import native_routes
from server.routes.openai import openai_routes
from server.routes.openapi_errors import ERRORS
from server.text.tokenizer import TextCodec

_OPEN_PATHS = frozenset({"/health"})
_ANSWERING_PATHS = frozenset(
    {"/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages"}
)


def create_app(
    *,
    engine: EngineClient,
    text: TextCodec,
    options: ServerOptions,
    listeners: Sequence[Callable[[RequestRecord], None]] = (),
) -> FastAPI:
    """Routes, error shapes and middleware. Starts nothing; the caller owns the engine's life.

    listeners are shown the record of every request when it has ended.
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
    metrics = ServerMetrics()
    answers = TextGenerator(engine=engine, text=text, metrics=metrics, limits=options.limits)
    input_processor = InputProcessor(text=text, info=engine.info, options=options)
    chats = ChatProcessor(
        input_processor=input_processor,
        parser=ChatParser(
            text=text, tool_parser=options.tool_parser, reasoning_parser=options.reasoning_parser
        ),
    )
    max_len = engine.info.served_max_len
    app.include_router(
        native_routes(
            answers=answers,
            input_processor=input_processor,
            text=text,
            options=options,
            max_len=max_len,
        )
    )
    app.include_router(
        openai_routes(
            text=text,
            answers=answers,
            input_processor=input_processor,
            chats=chats,
            options=options,
            max_len=max_len,
        )
    )
    app.include_router(anthropic_routes(answers=answers, chats=chats, options=options))
    app.include_router(
        control_routes(
            engine=engine,
            answers=answers,
            metrics=metrics,
            options=options,
            is_draining=lambda: bool(app.state.is_draining),
        )
    )
    add_docs_page(app)
    install_error_handlers(app)
    # The last one added is the first to see a request.
    app.add_middleware(Heads)
    app.add_middleware(Crashes)
    app.add_middleware(BodyLimit, max_bytes=options.max_body_bytes)
    app.add_middleware(ApiKeys, keys=options.keys, open_paths=_OPEN_PATHS)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )
    listeners = [
        partial(_count, metrics),
        *([log_request] if options.log_requests else []),
        *listeners,
    ]
    app.add_middleware(Records, listeners=listeners)
    app.add_middleware(RequestIds)
    app.add_middleware(ShortWay)
    return app


def _count(metrics: ServerMetrics, record: RequestRecord) -> None:
    if record.path in _ANSWERING_PATHS:
        metrics.count_request(record.status)


def begin_draining(app: FastAPI) -> None:
    """From now on /ready says no, so that a load balancer looks elsewhere."""
    app.state.is_draining = True
