"""Runs the application: on a Ray cluster, or on Ray on this machine until a signal."""

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import ray
from ray import serve
from ray.serve.config import HTTPOptions

from dspark.deploy.application import build_application
from dspark.deploy.arguments import check_update
from engine import LoadError
from server.http.listener import Listener
from server.settings.base import SettingsError
from server.settings.schema import Settings

logger = logging.getLogger(__name__)

_NAME = "dspark"  # of the application
_OBJECT_STORE_BYTES = 128 << 20  # requests and responses pass it only above 100 kB
_POLL_S = 0.2
# Ray ends its proxy if it starts more slowly; imports alone take longer on a busy machine.
_PROXY_START_S = 60.0
_CLOSING_S = 20.0  # for processes to end, after the time for requests


def deploy(settings: Settings, read_again: Callable[[], Settings]) -> int:
    """Deploy, and without deploy.address run until SIGTERM or SIGINT; return the exit code.

    read_again: loads the settings for an update, at SIGHUP. Raises SettingsError, LoadError.
    """
    address = settings.deploy.address
    started = time.monotonic()
    _connect(settings)
    try:
        _start_proxy(settings)
        _run(settings, started)
        if address is not None:
            return 0
        _serve_until_signal(settings, read_again)
        _drain(settings.server.shutdown_timeout_s)
        return 0
    finally:
        if address is None:
            serve.shutdown()
        ray.shutdown()


def _connect(settings: Settings) -> None:
    address = settings.deploy.address
    level = logging.WARNING
    if address is None:
        with Listener(host=settings.server.host, port=settings.server.port):
            pass  # a port in use is reported before anything starts
        os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", str(_PROXY_START_S))
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            logging_level=level,
        )
        return
    try:
        ray.init(address=address, logging_level=level)
    except ConnectionError as error:
        raise SettingsError(
            f"deploy.address: found {address}, but no Ray cluster there; accepted: auto, the "
            "address of a running cluster, or null"
        ) from error


def _start_proxy(settings: Settings) -> None:
    server = settings.server
    serve.start(
        http_options=HTTPOptions(
            host=server.host,
            port=server.port,
            ssl_certfile=server.ssl_certfile,
            ssl_keyfile=server.ssl_keyfile,
        ),
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )


def _run(settings: Settings, started: float) -> None:
    """Deploy or update, and wait until the replicas run. Raises LoadError."""
    try:
        serve.run(build_application(settings), name=_NAME, route_prefix="/")
    except RuntimeError as error:
        raise LoadError(f"the deployment failed: {_cause(error)}") from error
    scheme = "https" if settings.server.ssl_certfile else "http"
    seconds = time.monotonic() - started
    url = f"{scheme}://{settings.server.host}:{settings.server.port}"
    logger.info("serving replicas on %s, ready in %.1f s", url, seconds)


def _drain(timeout_s: float) -> None:
    """Take the application away; gateway and replicas end after their requests."""
    deadline = time.monotonic() + timeout_s + _CLOSING_S
    while time.monotonic() < deadline:
        with suppress(TimeoutError):  # Ray's own limit is a minute
            serve.delete(_NAME)
            return


def _cause(error: RuntimeError) -> str:
    """Return what a replica could not start with, else Ray's own message."""
    status = serve.status().applications.get(_NAME)
    messages = [d.message for d in status.deployments.values()] if status is not None else []
    lines = [line for message in messages for line in message.splitlines() if "Error" in line]
    return lines[-1] if lines else str(error)


def _serve_until_signal(settings: Settings, read_again: Callable[[], Settings]) -> None:
    """Update at SIGHUP; return at SIGTERM or SIGINT."""
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in watched}
    try:
        while True:
            while not signals:
                time.sleep(_POLL_S)
            if signals.pop(0) != signal.SIGHUP:
                logger.info("shutting down: running requests may finish")
                return
            try:
                updated = read_again()
                check_update(settings, updated)
                _run(updated, time.monotonic())
            except (SettingsError, LoadError) as error:
                logger.error("the settings are not updated: %s", error)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
