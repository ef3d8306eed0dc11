"""Serve a model over HTTP with native, OpenAI's and Anthropic's routes.

SIGTERM or SIGINT lets running requests finish for server.shutdown_timeout_s seconds; a second one
aborts them. `dspark serve MODEL` is short for `dspark serve --model.path MODEL`."""

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI

from dspark.cli.startup import add_checking_flags, add_model_argument, settle
from dspark.runtime.logs import configure_log
from dspark.runtime.models import resolved_engine_config, running_engine
from dspark.runtime.service import keys_of, server_options, tracing
from dspark.runtime.text import load_text
from engine import EngineClient
from engine.platform.host import load_average, runnable_threads, why_too_busy
from server.app import begin_draining, create_app, start_body_process
from server.http.connections import ConnectionLimits
from server.http.graceful_server import GracefulServer
from server.http.listener import Listener
from server.http.request_records import RequestRecord
from server.http.tls import Certificate, certificate_of
from server.options import ServerOptions
from server.settings.flags import add_settings_flags
from server.settings.schema import Settings
from server.text.tokenizer import TextCodec

USAGE = "dspark serve [MODEL] [--config FILE] [options]"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_checking_flags(parser)
    add_settings_flags(parser, are_listed=True)


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    settings = settle(args)
    if settings is None:
        return 0
    configure_log(settings.observability.log_level)
    keys, certificate = keys_of(settings), certificate_of(settings)
    with Listener(
        host=settings.server.host,
        port=settings.server.port,
        scheme="https" if certificate else "http",
    ) as listener:
        warn_if_busy()
        config = resolved_engine_config(settings)
        text = load_text(settings, config)
        options = server_options(settings, config, keys=keys)
        with tracing(settings) as listeners, running_engine(config) as engine:
            server = _web_server(
                settings, engine, text, options, listeners, listener.url, started, certificate
            )
            listener.listen()
            server.run(sockets=[listener.socket])
            return 0 if server.started and not must_exit(settings, engine) else 1


def must_exit(settings: Settings, engine: EngineClient) -> bool:
    """Return whether the engine has died, and the process with it, as the settings have it."""
    return settings.server.exit_on_engine_death and not engine.is_healthy()


def warn_if_busy() -> None:
    """Log a warning if other processes keep this machine busy, which makes every step slow."""
    reason = why_too_busy(
        load=load_average(), runnable=runnable_threads(), machine_cores=os.cpu_count() or 1
    )
    if reason is not None:
        logger.warning("%s", reason)


def example(url: str, *, has_chat_template: bool, needs_key: bool) -> str:
    """Write a shell command that sends a first request."""
    route = "/v1/chat/completions" if has_chat_template else "/v1/completions"
    body: dict[str, object] = {"prompt": _QUESTION}
    if has_chat_template:
        body = {"messages": [{"role": "user", "content": _QUESTION}]}
    key = " -H 'authorization: Bearer KEY'" if needs_key else ""
    data = json.dumps({**body, "max_tokens": 128, "stream": True})
    return f"curl -N {url}{route}{key} -H 'content-type: application/json' -d '{data}'"


_QUESTION = "Tom has 3 boxes of 12 pens and gives away 9 pens. How many are left?"


def _web_server(
    settings: Settings,
    engine: EngineClient,
    text: TextCodec,
    options: ServerOptions,
    listeners: Sequence[Callable[[RequestRecord], None]],
    url: str,
    started: float,
    certificate: Certificate | None,
) -> GracefulServer:
    app = create_app(engine=engine, text=text, options=options, listeners=listeners)

    def on_ready() -> None:
        start_body_process(app)
        seconds = time.monotonic() - started
        logger.info("serving %s on %s, ready in %.1f s", options.served_name, url, seconds)
        if engine.info.block_size:
            words = "speculating in blocks of %d draft tokens, anchor and bonus not counted"
            logger.info(words, engine.info.block_size)
        needs_key = options.keys.callers != ()
        line = example(url, has_chat_template=text.has_chat_template, needs_key=needs_key)
        logger.info("try it: %s", line)

    async def drain() -> None:
        await _drain(app, engine, settings.server.shutdown_timeout_s)

    async def abandon() -> None:
        logger.warning("second signal: aborting running requests: %d", await engine.abort(None))

    return GracefulServer(
        app,
        on_ready=on_ready,
        drain=drain,
        abandon=abandon,
        certificate=certificate,
        limits=ConnectionLimits(
            header_s=settings.server.header_timeout_s, body_s=settings.server.body_timeout_s
        ),
        has_failed=lambda: must_exit(settings, engine),
    )


async def _drain(app: FastAPI, engine: EngineClient, timeout_s: float) -> None:
    begin_draining(app)
    logger.info(
        "draining: running requests may finish for %g s; a second signal aborts them", timeout_s
    )
    if await engine.drain(timeout_s):
        logger.info("drained: no request is running")
    else:
        logger.warning("time limit reached: aborting the remaining requests")
