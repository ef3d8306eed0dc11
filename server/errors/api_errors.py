"""Maps every failure to a status code and an error body, in OpenAI's or Anthropic's shape.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
    {"type": "error", "error": {"type": ..., "message": ...}}

_ENGINE_ERRORS maps the engine's errors to their status.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from engine import (
    EngineBusy,
    EngineDead,
    EngineDraining,
    EngineError,
    RequestFailed,
    RequestRejected,
)
from server.errors.validation_errors import shorten

logger = logging.getLogger(__name__)

CLIENT_CLOSED = 499  # never sent; for logs and metrics

_RETRY_AFTER_S = 1

# The first match counts: a subclass goes before its base.
_ENGINE_ERRORS: tuple[tuple[type[EngineError], int, str], ...] = (
    (RequestRejected, 400, "rejected"),
    (EngineBusy, 429, "queue_full"),
    (EngineDraining, 503, "draining"),
    (EngineDead, 503, "engine_dead"),
    (RequestFailed, 500, "internal_error"),
    (EngineError, 500, "engine_error"),
)

ANTHROPIC_PATH = "/v1/messages"

_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "method_not_allowed",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable",
    504: "timeout_error",
}


# Routes of the served APIs that do not exist here, and what a client can do.
_NOT_SERVED = {
    "/v1/messages/batches": "send each request to POST /v1/messages",
    "/v1/batches": "send each request to its own route",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A status code and the four fields of the error body."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    details: Mapping[str, object] | None = None  # in Anthropic's body alone

    @property
    def body(self) -> dict[str, object]:
        kind = _TYPES.get(self.status, _TYPES[500 if self.status >= 500 else 400])
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def anthropic_body(self) -> dict[str, object]:
        """The error body of Anthropic's API, which has no param and no code."""
        kind = _ANTHROPIC_TYPES.get(self.status)
        if kind is None:
            kind = "invalid_request_error" if self.status < 500 else "api_error"
        error: dict[str, object] = {"type": kind, "message": self.message}
        if self.details is not None:
            error["details"] = self.details
        return {"type": "error", "error": error}

    def response(self, path: str, headers: Mapping[str, str] | None = None) -> Response:
        """Return the response in the shape of the path's API."""
        headers = dict(headers or {})
        if self.status in (429, 503):
            headers.setdefault("retry-after", str(_RETRY_AFTER_S))
        if self.status == 401:
            headers.setdefault("www-authenticate", "Bearer")
        body = self.anthropic_body if path.startswith(ANTHROPIC_PATH) else self.body
        return JSONResponse(body, status_code=self.status, headers=headers)


class ApiError(Exception):
    """A request that the server refuses."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str = "invalid_value",
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(status, message, param, code, details)


class ClientDisconnected(Exception):
    """The client closed the connection before the response was ready."""


def failure_of(error: Exception) -> Failure:
    """Return the failure to send for an error; an unexpected one reveals no details."""
    if isinstance(error, ApiError):
        return error.failure
    if isinstance(error, EngineError):
        return _engine_failure(error)
    if isinstance(error, HTTPException):
        return _http_failure(error)
    return Failure(500, "internal error; the server's log has the details", code="internal_error")


def install_error_handlers(app: FastAPI) -> None:
    """Install handlers of expected errors; middleware.InternalErrors handles the others."""
    for kind in (ApiError, EngineError):
        app.add_exception_handler(kind, _on_expected)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnected, _on_disconnect)


def _engine_failure(error: EngineError) -> Failure:
    status, code = next((s, c) for kind, s, c in _ENGINE_ERRORS if isinstance(error, kind))
    param = error.param if isinstance(error, RequestRejected) else None
    return Failure(status, str(error), param, code)


def _http_failure(error: HTTPException) -> Failure:
    if error.status_code == 413:
        return Failure(413, error.detail, code="body_too_large")
    return Failure(error.status_code, error.detail)


async def _on_expected(request: Request, error: Exception) -> Response:
    return failure_of(error).response(request.url.path)


async def _on_http(request: Request, error: Exception) -> Response:
    """Explain an unknown route or an unsupported method."""
    assert isinstance(error, HTTPException), error
    failure = failure_of(error)
    if failure.status == 404:
        failure = _unknown_route(request.url.path)
    elif failure.status == 405:
        accepted = (error.headers or {}).get("Allow", "another method")
        failure = Failure(
            405,
            f"{request.url.path} does not support {request.method}; accepted: {accepted}",
            code="method_not_allowed",
        )
    return failure.response(request.url.path, error.headers)


def _unknown_route(path: str) -> Failure:
    for prefix, instead in _NOT_SERVED.items():
        if path == prefix or path.startswith(f"{prefix}/"):
            message = f"{shorten(path)}: batches are not served; {instead}"
            return Failure(404, message, code="unsupported_route")
    return Failure(404, f"no route {shorten(path)}", code="unknown_route")


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)
